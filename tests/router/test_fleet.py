"""Slots and residency as replicas publish them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.fleet import Fleet, Member


def test_the_live_slot_wins_over_the_one_captured_at_the_start() -> None:
    member = Member("a", 8, stats={"slot": 2}, metadata={"slot": 5})
    assert Fleet([member]).slots == {"slot-2": "a"}


def test_the_slot_of_the_start_serves_until_there_are_stats() -> None:
    assert Fleet([Member("a", 8, metadata={"slot": 5})]).slots == {"slot-5": "a"}


def test_a_newcomer_without_a_slot_stays_off_the_ring_but_in_the_fleet() -> None:
    fleet = Fleet([Member("a", 8, stats={"slot": 0}), Member("b", 8)])
    assert fleet.slots == {"slot-0": "a"}
    assert fleet.caps == {"a": 8, "b": 8}
    fleet.check()


def test_where_nobody_has_a_slot_ids_stand_in() -> None:
    assert Fleet([Member("b", 8), Member("a", 8)]).slots == {"a": "a", "b": "b"}


def test_of_two_that_claim_a_slot_the_live_one_keeps_its_name() -> None:
    old = Member("a", 8, metadata={"slot": 1})
    new = Member("b", 8, stats={"slot": 1})
    assert Fleet([old, new]).slots == {"slot-1": "b", "slot-1/a": "a"}


def test_residency_is_every_list_of_the_stats() -> None:
    stats = {"slot": 0, "device": ["t/1"], "host": ["t/2"], "loading": ["t/3"]}
    fleet = Fleet([Member("a", 8, stats=stats)])
    assert [fleet.holds("a", f"t/{i}") for i in (1, 2, 3, 4)] == [True, True, True, False]
    assert not fleet.holds("unknown", "t/1")


def test_rows_are_those_of_the_smallest_replica() -> None:
    members = [Member("a", 8, stats={"rows": 32}), Member("b", 8, metadata={"rows": 16})]
    assert Fleet(members).rows == 16
    assert Fleet([Member("c", 8)]).rows is None


junk = st.sampled_from([None, -1, 0, 1, 2, "1", 2.5, [3], ["t/2"], {}])
stats = st.dictionaries(st.sampled_from(["slot", "rows", "device", "host"]), junk)


@given(st.dictionaries(st.sampled_from("abcde"), st.tuples(stats, stats)))
def test_no_stats_however_malformed_break_a_snapshot(
    described: dict[str, tuple[dict[str, object], dict[str, object]]],
) -> None:
    members = [Member(id_, 8, *both) for id_, both in described.items()]
    fleet = Fleet(members)
    fleet.check()
    assert fleet.slots == Fleet(reversed(members)).slots
    assert [fleet.holds(m.replica, "t/1") for m in members] == [False] * len(members)
