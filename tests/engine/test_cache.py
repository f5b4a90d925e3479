"""Where adapter versions are: one load however many ask, failures, leases, who yields to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.adapters.cache import Tier
from engine.config import AdapterConfig, ScheduleConfig
from engine.errors import AdapterRejected, AdapterUnavailable, ErrorInfo
from engine.messages import LoadDone, Prefetch, Retry
from engine.types import AdapterRef, FinishReason
from tests.support.world import World, adapter, config

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
GONE = AdapterUnavailable("The object can't be read.").info()


def schedule(depth: int = 0, **fields: float) -> ScheduleConfig:
    return replace(ScheduleConfig(max_seqs=8, max_step_tokens=32, depth=depth), **fields)


def failing(*names: str, error: ErrorInfo = GONE) -> object:
    return lambda ref: error if ref.name in names else None


def tier(world: World, ref: AdapterRef) -> Tier:
    return world.engine.scheduler.cache.tier(ref)


# Loads -----------------------------------------------------------------------------------------


@DEPTHS
def test_one_load_however_many_ask(depth: int) -> None:
    world = World(config(schedule=schedule(depth)), upload_s=0.03)
    ref = adapter("a")
    for i in range(40):
        world.submit(f"r{i}", max_tokens=3, ref=ref)
        world.step()
    world.run()
    assert len(world.loads) == 1
    assert all(a.finish is FinishReason.LENGTH for a in world.answers.values())
    assert tier(world, ref) is Tier.DEVICE
    assert world.residency.device == (ref.key,)


def test_small_blocks_make_room_for_a_large_one() -> None:
    """Each takes a whole block of 4096 bytes of host memory."""
    world = World(config(host_bytes=2 * 4096))
    for name in ("a", "b"):
        world.submit(name, ref=adapter(name, num_pages=1))
        world.run()
    world.submit("large", ref=adapter("large", num_pages=8))
    world.run()
    assert world.answers["large"].finish is FinishReason.LENGTH


def test_a_load_belongs_to_nobody_who_asked_for_it() -> None:
    world = World(config())
    ref = adapter("a")
    world.submit("first", ref=ref)
    world.step()
    world.submit("second", ref=ref)
    world.engine.abort("first")
    world.run()
    assert world.answers["first"].finish is FinishReason.ABORT
    assert world.answers["second"].finish is FinishReason.LENGTH
    assert len(world.loads) == 1


def test_a_load_that_all_have_left_is_kept_when_it_ends() -> None:
    world = World(config())
    ref = adapter("a")
    world.submit("r", ref=ref)
    world.step()
    world.engine.abort("r")
    world.run()
    world.submit("again", ref=ref)
    world.run()
    assert len(world.loads) == 1
    assert world.answers["again"].finish is FinishReason.LENGTH


def test_what_nobody_waits_for_any_more_is_not_loaded() -> None:
    world = World(config(adapters=AdapterConfig(max_loads=1)))
    world.submit("a", ref=adapter("a"))
    world.submit("b", ref=adapter("b"))
    world.step()
    world.engine.abort("b")
    world.run()
    assert [load.ref.name for load in world.loads] == ["a"]


def test_loads_are_bounded_and_those_of_the_least_served_tenant_come_first() -> None:
    world = World(config(adapters=AdapterConfig(max_loads=2)))
    world.submit("served", tenant="rich", prompt=30, max_tokens=30)
    world.step()
    for i in range(6):
        world.submit(f"rich{i}", tenant="rich", ref=adapter(f"rich{i}", 1, "rich"))
    world.submit("poor", tenant="poor", ref=adapter("poor", 1, "poor"))
    most = 0
    while world.engine.scheduler.num_waiting:
        world.step()
        most = max(most, len(world.loading))
    world.run()
    assert most == 2
    assert [load.ref.name for load in world.loads][0] == "poor"


def test_fetches_leave_room_for_what_lies_on_the_disk() -> None:
    """B-COLD-STALL between tiers: a store that is slow for some holds up nobody who was here."""
    world = World(config(adapters=AdapterConfig(max_loads=3, max_fetches=2), host_bytes=5 * 4096))
    world.submit("before", ref=adapter("before"))
    world.run()
    for i in range(5):  # they push it out of host memory and off the device
        world.submit(f"other{i}", ref=adapter(f"other{i}", 8))
        world.run()
    assert tier(world, adapter("before")) is not Tier.HOST
    world.load_s = 1000.0
    for i in range(6):
        world.submit(f"cold{i}", ref=adapter(f"cold{i}"))
    world.step()
    assert len(world.loading) == 2
    world.load_s = 0.05
    world.submit("again", ref=adapter("before"))
    world.run_until(lambda: world.answers["again"].finish is not None)
    assert world.answers["again"].finish is FinishReason.LENGTH
    assert all(world.answers[f"cold{i}"].finish is None for i in range(6))


def test_host_memory_makes_way_for_what_is_waited_for() -> None:
    world = World(config(host_bytes=3 * 4096))
    refs = [adapter(f"a{i}") for i in range(5)]
    for i, ref in enumerate(refs):
        world.submit(f"r{i}", ref=ref)
        world.run()
    assert len(world.residency.host) == 3
    assert len(world.residency.device) == 5, "on the device they need no copy in host memory"


# Failures --------------------------------------------------------------------------------------


@DEPTHS
def test_a_failed_load_fails_those_that_wait_for_it_and_nobody_else(depth: int) -> None:
    world = World(config(schedule=schedule(depth)), fails=failing("bad"))
    for i in range(3):
        world.submit(f"bad{i}", ref=adapter("bad"))
        world.submit(f"good{i}", ref=adapter("good"))
        world.submit(f"base{i}")
    world.run()
    for name, answer in world.answers.items():
        if name.startswith("bad"):
            # Sooner than a failure is forgotten, a new try would be told the same.
            told = replace(GONE, retry_after_s=AdapterConfig().failure_ttl_s)
            assert (answer.finish, answer.error) == (FinishReason.ERROR, told)
        else:
            assert answer.finish is FinishReason.LENGTH
    assert tier(world, adapter("bad")) is Tier.COLD


@pytest.mark.parametrize(("permanent", "ttl_s"), [(False, 2.0), (True, 30.0)])
def test_a_failure_is_remembered_for_a_while(permanent: bool, ttl_s: float) -> None:
    adapters = AdapterConfig(failure_ttl_s=2.0, permanent_failure_ttl_s=30.0)
    error = AdapterRejected("A tensor has the wrong shape.").info() if permanent else GONE
    world = World(config(adapters=adapters), fails=failing("bad", error=error))
    world.permanent = permanent
    ref = adapter("bad")
    world.submit("first", ref=ref)
    world.run()
    world.clock.sleep(ttl_s - 0.1)
    world.submit("early", ref=ref)
    world.run()
    early = world.answers["early"].error
    assert early is not None and replace(early, retry_after_s=error.retry_after_s) == error
    assert (early.retry_after_s is None) == permanent
    assert len(world.loads) == 1
    world.clock.sleep(0.2)
    world.fails = failing()
    world.submit("late", ref=ref)
    world.run()
    assert world.answers["late"].finish is FinishReason.LENGTH
    assert len(world.loads) == 2


@pytest.mark.parametrize("permanent", [False, True])
def test_what_may_be_mended_is_loaded_for_the_next_request(permanent: bool) -> None:
    world = World(config(), fails=failing("bad", "worse"))
    world.permanent = permanent
    for name in ("bad", "worse"):
        world.submit(name, ref=adapter(name))
    world.run()
    world.fails = failing()
    world.engine.deliver(Retry(adapter("bad")))
    for name in ("bad", "worse"):
        world.submit(f"{name} again", ref=adapter(name))
    world.run()
    assert world.answers["bad again"].finish is FinishReason.LENGTH
    assert world.answers["worse again"].finish is FinishReason.ERROR


def test_a_block_that_is_not_what_the_record_says_is_refused() -> None:
    world = World(config())
    ref = adapter("a")
    world.submit("r", ref=ref)
    world.step()
    load = world.loading.pop()[1]
    world.engine.deliver(LoadDone(load.load_id, ref.key, None, None, 0.1, False))
    world.run()
    error = world.answers["r"].error
    assert error is not None and error.status == 503


def test_an_answer_given_twice_changes_nothing() -> None:
    world = World(config())
    world.submit("r", ref=adapter("a"))
    world.step()
    load = world.loading.pop()[1]
    world.finish_load(load)
    world.finish_load(load)
    world.run()
    assert world.answers["r"].finish is FinishReason.LENGTH


# Prefetch --------------------------------------------------------------------------------------


def test_a_prefetch_brings_it_as_near_as_there_is_room() -> None:
    world = World(config(num_pages=32))
    near, far = adapter("near", 8), adapter("far", 9)
    world.engine.deliver(Prefetch(near))
    world.run_until(lambda: world.residency.device == (near.key,))
    world.submit("r", ref=adapter("used", 6), max_tokens=2)
    world.run()
    world.engine.deliver(Prefetch(far))
    world.run_until(lambda: far.key in world.residency.host)
    for _ in range(20):
        world.step()
    assert tier(world, far) is Tier.HOST and tier(world, near) is Tier.DEVICE
    world.submit("now", ref=far)
    world.run()
    assert tier(world, far) is Tier.DEVICE


def test_a_prefetch_of_what_has_failed_or_never_fits_is_ignored() -> None:
    world = World(config(num_pages=32), fails=failing("bad"))
    world.submit("r", ref=adapter("bad"))
    world.run()
    world.engine.deliver(Prefetch(adapter("bad")))
    world.engine.deliver(Prefetch(adapter("huge", 30)))
    for _ in range(5):
        world.step()
    assert len(world.loads) == 1
