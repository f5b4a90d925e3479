"""Service that other replicas gave: counted once, whoever restarts, and never so much that a tenant
loses its floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.accounts import Accounts
from engine.config import AccountConfig
from engine.exchange import ServiceExchange, most_counted
from engine.messages import PeerService, ServiceElsewhere
from engine.prices import prices_of
from engine.types import Tenant
from tests.support.simulation import Ask, Simulation, settings

A, B = Tenant("a"), Tenant("b")


def exchange(local_floor: float = 0.25) -> tuple[Accounts, ServiceExchange]:
    """Two tenants that both wait, and one that runs for each."""
    config = AccountConfig()
    books = Accounts(config, prices_of(config, 100))
    for tenant in (A, B):
        for number in range(2):
            books.arrive(f"{tenant.id}{number}", tenant)
        books.admit(f"{tenant.id}0", 1000, 10)
    return books, ServiceExchange(books, local_floor)


def peer(served: dict[str, float], epoch: str = "1", replica: str = "r2") -> PeerService:
    return PeerService(replica, epoch, tuple(served.items()))


def settled(books: Accounts) -> tuple[float, float]:
    books.check()
    return books.account("a").settled, books.account("b").settled


def test_own_counters_grow_and_are_told_once() -> None:
    books, mine = exchange()
    books.computed("a0", 300)
    assert dict(mine.take_changes()) == {"a": 300.0}
    assert mine.take_changes() == ()
    books.computed("a0", 100)
    books.computed("b0", 50)
    assert dict(mine.take_changes()) == {"a": 400.0, "b": 50.0}


def test_what_counts_elsewhere_begins_where_a_replica_is_first_heard_of() -> None:
    books, mine = exchange()
    books.computed("a0", 500)
    books.computed("b0", 500)
    mine.receive([peer({"a": 10_000.0})])
    assert settled(books) == (500.0, 500.0)
    books.computed("a0", 100)
    books.computed("b0", 100)
    mine.receive([peer({"a": 10_080.0, "b": 5.0})])
    assert settled(books) == (680.0, 605.0)
    mine.receive([peer({"a": 10_080.0})])
    assert settled(books) == (680.0, 605.0), "a counter that has not grown adds nothing"


def test_a_replica_that_began_anew_is_counted_from_there() -> None:
    books, mine = exchange()
    mine.receive([peer({"a": 100.0})])
    books.computed("a0", 400)
    books.computed("b0", 400)
    mine.receive([peer({"a": 7.0}, epoch="2")])
    assert settled(books) == (400.0, 400.0)
    books.computed("a0", 100)
    books.computed("b0", 100)
    mine.receive([peer({"a": 27.0}, epoch="2")])
    assert settled(books) == (520.0, 500.0)


def test_what_others_served_is_not_told_on() -> None:
    books, mine = exchange()
    mine.receive([peer({})])
    books.computed("a0", 100)
    books.computed("b0", 100)
    mine.receive([peer({"a": 50.0})])
    assert dict(mine.take_changes()) == {"a": 100.0, "b": 100.0}


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from([0.5, 1.0, 4.0])), min_size=1),
    st.floats(0, 1e6),
    st.floats(0, 1),
)
def test_what_counts_leaves_everybody_the_floor(
    tenants: list[tuple[float, float]], window: float, floor: float
) -> None:
    """What is counted for a tenant, less the mean of all, is what it falls behind its share by."""
    remote, weights = [r for r, _ in tenants], [w for _, w in tenants]
    most = most_counted(remote, weights, window, floor)
    counted = [min(r, most) for r in remote]
    mean = sum(c * w for c, w in zip(counted, weights, strict=True)) / sum(weights)
    share = window / sum(weights)
    assert all(share - (c - mean) >= floor * share - 1e-6 * (1 + c + share) for c in counted)
    if counted != remote:
        assert max(counted) - mean == pytest.approx((1 - floor) * share, rel=1e-6, abs=1e-6)


def ask(tenant: Tenant) -> Ask:
    return Ask(tenant, 256, 64, 96)


@pytest.mark.parametrize("local_floor", [0.25, 0.5])
def test_a_tenant_that_others_serve_without_end_keeps_its_floor_here(local_floor: float) -> None:
    sim = Simulation(settings(rows=24, accounts=AccountConfig(local_floor=local_floor)))
    elsewhere = 0.0
    for second in range(1, 17):
        sim.backlog([lambda: ask(A), lambda: ask(B)], float(second), depth=24)
        elsewhere += 1e6
        sim.engine.deliver(ServiceElsewhere((peer({"a": elsewhere}),)))
        if second == 6:
            before = dict(sim.served)
    mine, other = (sim.served[tenant] - before[tenant] for tenant in "ab")
    share = mine / (mine + other)
    assert share == pytest.approx(local_floor / 2, rel=0.2), "of half, which is its local share"
