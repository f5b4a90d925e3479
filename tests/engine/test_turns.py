"""Whose turn it is: by accounts, by age, for locality among near-equals; and shares by weight."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from engine.turns import MAX_LOOKS, NEAR_EQUALS, Ages, locality_score
from engine.types import Tenant
from tests.support.accounting import A, B, C, Waiting, accounts, turns_of


def test_under_fcfs_the_oldest_request_goes_first_and_everybody_stands_alike() -> None:
    books = accounts(order="fcfs")
    for tenant, num_prompt in ((A, 500), (B, 0), (C, 10)):
        books.arrive(tenant.id, tenant)
        books.admit(tenant.id, num_prompt, 1)
    turns = books.turns({"a", "b", "c"}, aged=Waiting({"a": 2.0, "b": 3.0, "c": 1.0}))
    assert [turns.next() for _ in range(4)] == ["c", "a", "b", None]
    assert {books.standing(tenant) for tenant in "abc"} == {0.0}


def test_under_fcfs_nobody_is_asked_but_those_whose_turn_it_is() -> None:
    """Of ten thousand; what the oldest wait for has changed since they were put in order."""
    books = accounts(order="fcfs")
    waiting = Waiting({f"t{i:05}": float(i) for i in range(10_000)})
    turns = books.turns(waiting.orders.keys(), aged=waiting)
    waiting.orders |= {"t00000": 2.5, "t00002": 20_000.0}
    assert [turns.next() for _ in range(3)] == ["t00001", "t00000", "t00003"]
    waiting.orders["t00001"] = 3.5
    turns.again("t00001")
    assert [turns.next() for _ in range(2)] == ["t00001", "t00004"]
    assert waiting.num_asked < 12


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9)), max_size=30))
def test_ages_are_in_order_whatever_changes(changes: list[tuple[str, int | None]]) -> None:
    ages, orders = Ages(), dict[str, float]()
    for tenant, order in changes:
        ages.put(tenant, order)
        if order is None:
            orders.pop(tenant, None)
        else:
            orders[tenant] = order
        ages.check(orders)
    assert ages.ascending() == sorted((order, tenant) for tenant, order in orders.items())


def test_looking_for_candidates_is_bounded() -> None:
    books = accounts()
    names = [f"t{i:04}" for i in range(500)]
    for name in names:
        books.arrive(name, Tenant(name))
    asked: list[str] = []
    turns = books.turns(
        set(names),
        aged=Waiting(),
        is_candidate=lambda t: bool(asked.append(t)),
        max_looks=MAX_LOOKS,
    )
    assert turns.next() is None and len(asked) == MAX_LOOKS + 1


def test_the_order_follows_settled_plus_outstanding() -> None:
    books = accounts()
    for request_id, tenant in (("a", A), ("b", B), ("c", C)):
        books.arrive(request_id, tenant)
    books.admit("a", 100, 10)
    books.admit("b", 50, 10)
    assert books.order() == ["c", "b", "a"]
    books.admit("c", 90, 10)
    assert books.order() == ["b", "c", "a"]
    books.finish("a", completed=False)
    assert books.order() == ["b", "c"]


def test_turns_follow_the_accounts_as_they_change() -> None:
    books = accounts()
    for tenant in (A, B, C):
        for turn in range(3):
            books.arrive(f"{tenant.id}{turn}", tenant)
    books.admit("b0", 100, 1)
    turns = turns_of(books, {"a", "b"})
    assert turns.next() == "a"
    books.admit("a0", 150, 1)
    turns.again("a")
    assert turns.next() == "b"
    assert turns.next() == "a", "a tenant that isn't brought back holds up nobody"
    assert turns.next() is None


def test_locality_chooses_among_near_equals_only() -> None:
    books = accounts(locality_slack_tokens=10.0)
    for tenant, num_prompt in ((A, 0), (B, 8), (C, 13)):
        books.arrive(tenant.id, tenant)
        books.admit(tenant.id, num_prompt, 1)
    score = {"a": 0.0, "b": 1.0, "c": 9.0}
    turns = turns_of(books, {"a", "b", "c"})
    assert [turns.next(score.__getitem__) for _ in range(4)] == ["b", "a", "c", None]
    assert turns_of(books, {"a", "b"}).next(lambda tenant: 0.0) == "a", (
        "of equals the least account"
    )


def test_locality_looks_at_a_bounded_number_of_tenants() -> None:
    books = accounts()
    tenants = [Tenant(f"t{i:04}") for i in range(1000)]
    for tenant in tenants:
        books.arrive(tenant.id, tenant)
    asked: list[str] = []
    turns = turns_of(books, {tenant.id for tenant in tenants})
    turns.next(lambda tenant: float(asked.append(tenant) or 0))
    assert len(asked) <= 2 * NEAR_EQUALS


def test_locality_outweighs_a_stated_wait_and_no_more() -> None:
    resident = locality_score(0.001, wait_s=1.0, num_tokens=500, in_batch=True)
    assert locality_score(0.001, 1.4, 500, False) < resident
    assert locality_score(0.001, 1.6, 500, False) > resident


def test_shares_are_by_the_weights_of_those_with_work_and_at_least_one() -> None:
    books = accounts()
    tenants = [Tenant(str(weight), weight=weight) for weight in (1.0, 2.0, 3.0, 4.0)]
    for tenant in tenants:
        books.arrive(tenant.id, tenant)
    assert [books.share(tenant.id, 40) for tenant in tenants] == [4, 8, 12, 16]
    assert [books.share(tenant.id, 3) for tenant in tenants] == [1, 1, 1, 1]
    books.finish("4.0", completed=False)
    assert [books.share(tenant.id, 60) for tenant in tenants[:3]] == [10, 20, 30]
    assert books.share("4.0", 60) == 24, "as if it came back now"


def test_the_spread_of_accounts_is_found_at_the_ends_of_their_order() -> None:
    """Of 2,000 tenants the least of those who wait is behind 10 without, and the largest ahead of
    10: the values of two accounts are looked at."""
    books = accounts()
    for number in range(2000):
        tenant = Tenant(f"t{number:04}")
        books.arrive(str(number), tenant)
        books.account(tenant.id).settled = float(number)
        books.served_elsewhere(tenant.id, 0.0)
        if number < 10 or number >= 1990:
            books.admit(str(number), 0, 0)
    books.order()
    value = type(books.account("t0000")).value.fget.__code__  # type: ignore[attr-defined]
    looks = 0

    def count(frame, event, _):  # type: ignore[no-untyped-def]
        nonlocal looks
        looks += event == "call" and frame.f_code is value

    sys.setprofile(count)
    try:
        spread = books.spread()
    finally:
        sys.setprofile(None)
    assert spread == 1989 - 10 and looks == 2
