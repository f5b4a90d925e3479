"""Failures are remembered by cause and by version, for longer when they repeat."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.failures import Failures
from engine.adapters.s3_errors import StoreRefused, StoreUnavailable
from engine.adapters.store import AdapterCorrupt, ObjectMissing
from engine.errors import AdapterRejected

PASSES = StoreUnavailable("Slow down.").info()
LASTS = StoreRefused("Not allowed.").info()


def failures():
    return Failures(ttl_s=2.0, max_ttl_s=60.0, permanent_ttl_s=300.0)


def held_s(memory, key, now):
    """How long from `now` on nobody tries again, to a hundredth."""
    return next(t for t in range(100_000) if memory.get(key, now + t / 100) is None) / 100


def test_who_comes_meanwhile_is_told_the_error_and_when_to_come_back():
    memory = failures()
    assert memory.add("a", PASSES, False, now=10.0) == replace(PASSES, retry_after_s=2.0)
    told = memory.get("a", 10.5)
    assert (told.code, told.message, told.retry_after_s) == (PASSES.code, PASSES.message, 1.5)
    assert memory.get("a", 11.9).retry_after_s == 1.0, "never sooner than the store asked for"
    assert memory.get("a", 12.0) is None
    assert memory.get("b", 10.5) is None


def test_what_a_new_try_does_not_mend_says_no_time_to_anybody():
    """Whoever waited for the load and whoever comes later are told alike: which of them a request
    is, the client can't know."""
    for error in (LASTS, ObjectMissing("x").info(), AdapterCorrupt("x").info()):
        memory = failures()
        assert memory.add("a", error, False, now=0.0) == error == memory.get("a", 1.5)
        assert held_s(memory, "a", 0.0) == 2.0


def test_a_permanent_one_lasts():
    memory = failures()
    rejected = AdapterRejected("x").info()
    assert memory.add("a", rejected, True, now=0.0) == rejected == memory.get("a", 1.0)
    assert held_s(memory, "a", 0.0) == 300.0


def test_what_was_mended_is_forgotten_with_its_row_but_for_what_stays():
    memory = failures()
    for key in "ab":
        for _ in range(3):
            memory.add(key, LASTS, False, 0.0)
    memory.add("c", AdapterRejected("x").info(), True, 0.0, stays=True)
    for key in "acd":
        memory.forget(key)
    assert memory.get("a", 0.0) is None
    assert memory.get("b", 0.0) is not None and memory.get("c", 0.0) is not None
    memory.add("a", LASTS, False, 0.0)
    assert held_s(memory, "a", 0.0) == 2.0


def test_repeated_ones_back_off_to_a_cap_and_versions_that_failed_together_part():
    memory = failures()
    now, pauses = 0.0, []
    for _ in range(10):
        memory.add("a", PASSES, False, now)
        pauses.append(held_s(memory, "a", now))
        now += pauses[-1]
    caps = [min(60.0, 2.0 * 2**n) for n in range(10)]
    assert all(c / 2 <= p <= c for p, c in zip(pauses[1:], caps[1:], strict=True))
    assert pauses[0] == 2.0 and len(set(pauses)) > 8
    together = set()
    for key in "bcdefgh":
        for _ in range(3):
            memory.add(key, PASSES, False, now)
        together.add(held_s(memory, key, now))
    assert len(together) == 7


def test_a_success_and_a_long_quiet_end_the_row():
    memory = failures()
    for _ in range(5):
        memory.add("a", PASSES, False, 0.0)
        memory.add("b", PASSES, False, 0.0)
    memory.succeeded("a")
    assert memory.get("a", 0.0) is None
    memory.add("a", PASSES, False, 0.0)
    assert held_s(memory, "a", 0.0) == 2.0
    memory.add("b", PASSES, False, 1000.0)
    assert held_s(memory, "b", 1000.0) == 2.0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.floats(0, 500)), max_size=30))
def test_one_version_s_failures_never_hold_up_another(steps):
    memory, alone = failures(), failures()
    now = 0.0
    for key, permanent, pause in steps:
        memory.add(key, PASSES, permanent, now)
        if key == "a":
            alone.add(key, PASSES, permanent, now)
        assert memory.get("c", now) is None
        assert memory.get("a", now + pause) == alone.get("a", now + pause)
        now += pause
