"""Replicas hear of each other's service through whoever asks them, as often as that may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from deployments.shared_service import ServiceBook, ServiceExchange
from engine.errors import InvalidRequest
from engine.messages import PeerService


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
    ingresses = [ServiceExchange(fleet), ServiceExchange(fleet)]  # type: ignore[arg-type]
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
    ingress = ServiceExchange(fleet)  # type: ignore[arg-type]
    fleet.books[0].heard([("a", 5.0), ("b", 1.0)])
    await ingress.exchange()
    await ingress.exchange()
    fleet.books[0] = ServiceBook("another life")
    fleet.books[0].heard([("a", 2.0)])
    await ingress.exchange()
    await ingress.exchange()
    assert fleet.heard[1][-1] == PeerService("0", "another life", (("a", 2.0),))


@pytest.mark.parametrize(
    "order", [{"v": 2, "peers": []}, {"v": 1}, {"v": 1, "peers": [{"slot": 0}]}]
)
def test_an_order_that_cant_be_read_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ServiceBook("life").read(order)
