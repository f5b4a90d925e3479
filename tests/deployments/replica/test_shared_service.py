"""Replicas hear of each other's service through whoever asks them, as often as that may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from deployments.orders.service_keeper import ServiceKeeper
from deployments.replica.shared_service import ServiceBook
from engine.config import AccountConfig
from engine.errors import InvalidRequest
from engine.messages import PeerService, ServiceElsewhere
from engine.types import Tenant
from tests.support.simulation import Ask, Simulation, settings


class Fleet:
    """Replicas of which nothing is real but their books. heard: what each one's core was told."""

    def __init__(self, num: int) -> None:
        self.books = [ServiceBook(f"life-{slot}") for slot in range(num)]
        self.heard: list[list[PeerService]] = [[] for _ in range(num)]

    async def tell(
        self, method: str, order: Mapping[str, Any], timeout_s: float
    ) -> list[Mapping[str, Any]]:
        assert method == "exchange_service"
        answers = []
        for slot, book in enumerate(self.books):
            self.heard[slot] += book.read(order).peers
            answers.append(book.answer(slot))
        return answers


async def test_each_hears_of_the_others_and_only_what_is_new() -> None:
    fleet = Fleet(3)
    ingresses = [ServiceKeeper(fleet), ServiceKeeper(fleet)]  # type: ignore[arg-type]
    fleet.books[0].heard([("a", 5.0), ("b", 1.0)])
    for ingress in ingresses * 2:
        await ingress.exchange()
    of_first = [peer for peer in fleet.heard[1] if peer.replica == "0"]
    assert of_first[0] == PeerService("0", "life-0", (("a", 5.0), ("b", 1.0)))
    assert all(peer.served == () for peer in of_first[1:]), "told once, whoever carries it"
    fleet.heard[1].clear()
    fleet.books[0].heard([("a", 7.0)])
    for ingress in ingresses * 2:
        await ingress.exchange()
    news = [peer.served for peer in fleet.heard[1] if peer.replica == "0" and peer.served]
    assert news == [(("a", 7.0),)]
    assert not any(peer.replica == "1" for peer in fleet.heard[1]), "not of itself"


async def test_a_replica_that_began_anew_tells_all_it_has() -> None:
    fleet = Fleet(2)
    ingress = ServiceKeeper(fleet)  # type: ignore[arg-type]
    fleet.books[0].heard([("a", 5.0), ("b", 1.0)])
    await ingress.exchange()
    await ingress.exchange()
    fleet.books[0] = ServiceBook("another life")
    fleet.books[0].heard([("a", 2.0)])
    await ingress.exchange()
    await ingress.exchange()
    assert fleet.heard[1][-1] == PeerService("0", "another life", (("a", 2.0),))


LOCAL_FLOOR = 0.25
SPREAD, OWN = Tenant("spread"), [Tenant(f"own{slot}") for slot in range(3)]


class Cores(Fleet):
    """Three engines on virtual clocks behind real books: what they say of their service goes the
    way that it goes between replicas."""

    def __init__(self) -> None:
        super().__init__(3)
        accounts = AccountConfig(local_floor=LOCAL_FLOOR)
        self.cores = [Simulation(settings(rows=24, accounts=accounts)) for _ in self.books]
        for core, book in zip(self.cores, self.books, strict=True):
            core.hear = lambda stats, book=book: book.heard(stats.service)  # type: ignore[misc]

    async def second(self, ingress: ServiceKeeper | None) -> list[tuple[float, float]]:
        """One tenant asks everywhere without end, three at one replica each; more waits than a step
        admits, so that nobody's queue runs dry. What those two were served at each replica."""
        served = []
        for core, own in zip(self.cores, OWN, strict=True):
            before = dict(core.served)
            makes = [lambda t=t: Ask(t, 256, 64, 96) for t in (SPREAD, own)]
            core.backlog(makes, core.clock() + 1.0, depth=24)
            served += [tuple(core.served[t.id] - before.get(t.id, 0.0) for t in (SPREAD, own))]
        if ingress is not None:
            await ingress.exchange()
            for core, heard in zip(self.cores, self.heard, strict=True):
                core.engine.deliver(ServiceElsewhere(tuple(heard)))
                heard.clear()
        return served  # type: ignore[return-value]


async def test_three_replicas_share_the_whole_service_and_without_exchange_each_its_own() -> None:
    """One tenant spread over all and one local to each: a quarter of the whole each, and nobody
    below the floor of its local share. Then the exchange is away: half of each replica."""
    fleet = Cores()
    ingress = ServiceKeeper(fleet)  # type: ignore[arg-type]
    for _ in range(4):
        await fleet.second(ingress)
    seconds = [await fleet.second(ingress) for _ in range(7)]
    spread = sum(part[0] for second in seconds for part in second)
    own = [sum(second[slot][1] for second in seconds) for slot in range(3)]
    quarter = (spread + sum(own)) / 4
    assert all(amount == pytest.approx(quarter, rel=0.1) for amount in (spread, *own))
    for slot in range(3):
        here = sum(second[slot][0] for second in seconds)
        local_share = (here + own[slot]) / 2
        assert min(here, own[slot]) >= LOCAL_FLOOR * local_share
    await fleet.second(None)
    alone = [await fleet.second(None) for _ in range(3)]
    for slot in range(3):
        here, mine = (sum(second[slot][i] for second in alone) for i in (0, 1))
        assert here == pytest.approx(mine, rel=0.1)


@pytest.mark.parametrize(
    "order", [{"v": 2, "peers": []}, {"v": 1}, {"v": 1, "peers": [{"slot": 0}]}]
)
def test_an_order_that_cant_be_read_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ServiceBook("life").read(order)
