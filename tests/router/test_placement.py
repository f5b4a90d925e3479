"""Placement: sticky, bounded, warm first; and at the size of a large fleet."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load import LoadTable
from router.placement import Placement, PlacementPolicy, Reason
from router.ring import Ring

WALK = ("a", "b", "c", "d")


def table(loads: dict[str, int], caps: dict[str, int] | None = None) -> LoadTable:
    loaded = LoadTable(lambda: 0.0)
    loaded.set_members(caps or dict.fromkeys(loads, 1000))
    for replica, num in loads.items():
        for _ in range(num):
            loaded.sent(replica)
    return loaded


def nobody(replica: str) -> bool:
    return False


def test_the_owner_takes_it_while_within_the_bound() -> None:
    loads = table({"a": 2, "b": 0, "c": 0, "d": 0})
    assert PlacementPolicy(min_bound=4).place(WALK, loads, nobody) == Placement("a", "owner", 4)


def test_near_the_bound_the_next_replica_is_to_be_prepared_unless_it_is_warm() -> None:
    policy = PlacementPolicy(min_bound=4)
    loads = table({"a": 3, "b": 0, "c": 0, "d": 0})
    assert policy.place(WALK, loads, nobody) == Placement("a", "owner", 4, spare="b")
    assert policy.place(WALK, loads, "b".__eq__).spare is None
    loads = table({"a": 3, "b": 4, "c": 0, "d": 0})
    assert policy.place(WALK, loads, "b".__eq__).spare == "c", "b could take nothing"
    assert PlacementPolicy(min_bound=1).place(WALK, table({"a": 0}), nobody).spare is None


def test_above_the_bound_a_warm_successor_comes_before_a_nearer_cold_one() -> None:
    loads = table({"a": 8, "b": 0, "c": 0, "d": 0})
    policy = PlacementPolicy()
    assert policy.place(WALK, loads, "c".__eq__) == Placement("c", Reason.RESIDENT, 3)
    assert policy.place(WALK, loads, nobody) == Placement("b", Reason.SPILL, 3)


def test_a_warm_successor_above_the_bound_is_passed_over() -> None:
    loads = table({"a": 8, "b": 8, "c": 0, "d": 0})
    assert PlacementPolicy().place(WALK, loads, "b".__eq__).replica == "c"


def test_a_full_owner_within_the_bound_is_passed_over() -> None:
    loads = table({"a": 1, "b": 0, "c": 0, "d": 0}, {"a": 1, "b": 9, "c": 9, "d": 9})
    assert PlacementPolicy(min_bound=8).place(WALK, loads, nobody).reason is Reason.SPILL


def test_beyond_the_walk_the_least_loaded_takes_it() -> None:
    loads = table({"a": 9, "b": 9, "c": 1, "d": 2})
    placement = PlacementPolicy().place(WALK[:2], loads, nobody)
    assert placement == Placement("c", Reason.LEAST_LOADED, 7)


def test_all_full_waits() -> None:
    loads = table({"a": 2, "b": 1}, {"a": 2, "b": 1})
    assert PlacementPolicy(min_bound=9).place(("a", "b"), loads, nobody).reason is Reason.FULL
    assert PlacementPolicy().place_base(loads, 1) == Placement(None, Reason.FULL)


def test_an_empty_fleet_waits() -> None:
    assert PlacementPolicy().place((), table({}), nobody).replica is None
    assert PlacementPolicy().place_base(table({}), 0).replica is None


def test_base_requests_go_to_the_least_loaded() -> None:
    loads = table({"a": 2, "b": 1, "c": 1, "d": 3})
    placed = [PlacementPolicy().place_base(loads, tie).replica for tie in range(4)]
    assert placed == ["b", "b", "c", "b"]


@pytest.mark.parametrize("wrong", [{"load_factor": 1.0}, {"min_bound": 0}])
def test_a_policy_without_slack_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 1"):
        PlacementPolicy(**wrong)


replicas = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 40), st.booleans()), min_size=1, max_size=8
)


@given(
    fleet=replicas,
    reach=st.integers(1, 8),
    load_factor=st.floats(1.01, 3),
    min_bound=st.integers(1, 10),
)
def test_the_bound_holds_wherever_it_can(
    fleet: list[tuple[int, int, bool]], reach: int, load_factor: float, min_bound: int
) -> None:
    """Never above the bound when somebody with room is within it; never to a full one; the reason
    says what happened."""
    names = [f"r{i}" for i in range(len(fleet))]
    num = {name: load for name, (load, _, _) in zip(names, fleet, strict=True)}
    caps = {name: cap for name, (_, cap, _) in zip(names, fleet, strict=True)}
    warm = {name for name, (_, _, w) in zip(names, fleet, strict=True) if w}
    loads = table(num, caps)
    placement = PlacementPolicy(load_factor, min_bound).place(
        names[:reach], loads, warm.__contains__
    )
    bound = max(min_bound, math.ceil(load_factor * (sum(num.values()) + 1) / len(names)))
    assert placement.bound == bound
    within = [n for n in names if num[n] < min(bound, caps[n])]
    on_walk = [n for n in within if n in names[:reach]]
    if placement.replica is None:
        assert placement.reason is Reason.FULL
        assert all(num[n] >= caps[n] for n in names)
        return
    assert num[placement.replica] < caps[placement.replica]
    if within:
        assert placement.replica in within
    if names[0] in on_walk:
        assert (placement.replica, placement.reason) == (names[0], Reason.OWNER)
        assert placement.bound == bound
        assert placement.spare is None or placement.spare in on_walk[1:]
    elif on_walk:
        warm_ones = [n for n in on_walk if n in warm]
        reason = Reason.RESIDENT if warm_ones else Reason.SPILL
        assert placement == Placement((warm_ones or on_walk)[0], reason, bound)
    else:
        assert placement.reason is Reason.LEAST_LOADED
    loads.check()


def test_forty_at_once_for_one_adapter_stay_within_the_bound() -> None:
    loads = table(dict.fromkeys(WALK, 0))
    policy = PlacementPolicy(min_bound=1)
    for _ in range(40):
        placement = policy.place(WALK, loads, nobody)
        assert placement.replica is not None
        loads.sent(placement.replica)
        assert loads.load(placement.replica) <= placement.bound
    assert max(map(loads.load, WALK)) <= math.ceil(1.25 * 40 / 4)


def test_below_min_bound_nothing_spills() -> None:
    loads = table(dict.fromkeys(WALK, 0))
    for _ in range(8):
        assert PlacementPolicy(min_bound=8).place(WALK, loads, nobody).reason is Reason.OWNER
        loads.sent("a")
    assert PlacementPolicy(min_bound=8).place(WALK, loads, nobody).reason is Reason.SPILL


def zipf(num_keys: int, num_draws: int) -> list[int]:
    """Keys drawn with popularity 1 / rank by a fixed low-discrepancy sequence."""
    weights = [1 / (rank + 1) for rank in range(num_keys)]
    total, edges, reached = sum(weights), [], 0.0
    for weight in weights:
        reached += weight / total
        edges.append(reached)
    draws, position = [], 0.5
    for _ in range(num_draws):
        position = (position + 0.6180339887498949) % 1
        draws.append(min(bisect_left(edges, position), num_keys - 1))
    return draws


def test_a_thousand_replicas_and_many_adapters_stay_within_the_bound_and_fast() -> None:
    """20,000 in progress at all times, 100,000 adapters, Zipf: the hottest replica never exceeds
    the bound, most requests land where their adapter is warm, and a pick takes microseconds."""
    num_replicas, in_progress = 1000, 20_000
    ring = Ring(f"slot-{i}" for i in range(num_replicas))
    loads = table(dict.fromkeys(ring.slots, 0), dict.fromkeys(ring.slots, 256))
    policy = PlacementPolicy(min_bound=8)
    homes: dict[int, set[str]] = {}
    running: deque[str] = deque()
    reasons: Counter[Reason] = Counter()
    spent = 0.0
    for key in zipf(100_000, 40_000):
        held = homes.setdefault(key, set())
        began = time.thread_time()
        placement = policy.place(ring.walk(f"t/{key}"), loads, held.__contains__)
        spent += time.thread_time() - began
        assert placement.replica is not None
        held.add(placement.replica)
        loads.sent(placement.replica)
        assert loads.load(placement.replica) <= placement.bound
        reasons[placement.reason] += 1
        running.append(placement.replica)
        if len(running) > in_progress:
            loads.completed(running.popleft())
    loads.check()
    ring.check()
    busiest = max(map(loads.load, ring.slots))
    print(f"{1e6 * spent / 40_000:.1f} us a pick, {reasons}, busiest {busiest} of mean 20")
    assert busiest <= policy.bound(in_progress, num_replicas)
    assert reasons[Reason.OWNER] + reasons[Reason.RESIDENT] > 0.75 * 40_000
    assert spent / 40_000 < 0.001
