"""The ring: same order everywhere, little movement, bounded caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uhashring import HashRing

from router.ring import Ring

KEYS = [f"tenant-{i % 7}/adapter-{i}" for i in range(400)]


def slots(num: int) -> list[str]:
    return [f"slot-{i}" for i in range(num)]


def owners(ring: Ring) -> dict[str, str]:
    return {key: ring.walk(key)[0] for key in KEYS}


def test_adding_a_slot_moves_under_a_quarter_and_only_to_the_newcomer() -> None:
    four, five = owners(Ring(slots(4))), owners(Ring(slots(5)))
    moved = {key for key in KEYS if four[key] != five[key]}
    assert 0 < len(moved) < len(KEYS) / 4
    assert {five[key] for key in moved} == {"slot-4"}


def test_removing_the_slot_again_sends_every_key_back() -> None:
    four = Ring(slots(4))
    back = Ring(slots(4), previous=Ring(slots(5), previous=four))
    assert owners(back) == owners(four)
    back.check()


@given(
    num=st.integers(1, 12),
    gone=st.integers(0, 11),
    key=st.text(min_size=1, max_size=20),
)
def test_a_key_only_moves_when_its_slot_goes(num: int, gone: int, key: str) -> None:
    """...and its walk without that slot is the old walk with the slot left out."""
    before = Ring(slots(num))
    left = [slot for slot in slots(num) if slot != f"slot-{gone}"]
    if left:
        after = Ring(left, previous=before)
        assert after.walk(key) == tuple(s for s in before.walk(key) if s in left)
        after.check()
    before.check()


def test_the_order_is_that_of_uhashring() -> None:
    ring = Ring(slots(16))
    reference = HashRing(nodes=slots(16), vnodes=100, hash_fn="ketama")
    for key in KEYS:
        assert ring.walk(key) == tuple(n["nodename"] for n in reference.range(key, unique=True))


def test_the_order_of_slots_given_does_not_matter() -> None:
    assert owners(Ring(reversed(slots(9)))) == owners(Ring(slots(9)))


def test_every_process_finds_the_same_owners() -> None:
    script = (
        "import json; from router.ring import Ring\n"
        "ring = Ring([f'slot-{i}' for i in range(5)])\n"
        "keys = [f'tenant-{i % 7}/adapter-{i}' for i in range(400)]\n"
        "print(json.dumps({key: ring.walk(key) for key in keys}))"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "12345")
    ]
    ring = Ring(slots(5))
    assert answers[0] == answers[1]
    assert json.loads(answers[0]) == {key: list(ring.walk(key)) for key in KEYS}


def test_keys_spread_over_the_slots() -> None:
    ring = Ring(slots(4))
    spread = Counter(ring.walk(f"t/{i}")[0] for i in range(20_000))
    assert max(spread.values()) < 1.15 * 20_000 / 4


def test_walks_are_kept_up_to_a_bound() -> None:
    ring = Ring(slots(50), reach=3, cache_walks=10)
    for key in KEYS:
        assert len(ring.walk(key)) == 3
        assert ring.walk(key) is ring.walk(key)
    ring.check()


def test_an_empty_ring_has_empty_walks() -> None:
    assert Ring(()).walk("t/a") == ()


@pytest.mark.parametrize("wrong", [{"vnodes": 0}, {"reach": 0}, {"cache_walks": 0}])
def test_sizes_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ring(slots(2), **wrong)


def test_a_slot_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="distinct"):
        Ring(["slot-1", "slot-1"])
