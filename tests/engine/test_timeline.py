"""What the core tells of a request's waits and of its adapter's way, against a clock of ours."""

from __future__ import annotations

from itertools import pairwise

from engine.config import ScheduleConfig
from engine.errors import AdapterUnavailable
from engine.messages import Prefetch
from engine.timeline import Journey
from engine.types import FinishReason
from tests.support.world import World, adapter, config

LOAD_S, UPLOAD_S, STEP_S = 0.05, 0.03, 0.01
GONE = AdapterUnavailable("The object can't be read.").info()


def world(**changes: object) -> World:
    return World(config(**changes), load_s=LOAD_S, upload_s=UPLOAD_S, step_s=STEP_S)  # type: ignore[arg-type]


def test_a_request_that_waits_for_nothing_has_one_wait_without_a_journey() -> None:
    there = world()
    there.submit("base")
    there.run()
    (wait,) = there.answers["base"].waits
    assert wait.start_s == wait.end_s == 0.0 and wait.journey is None


def test_a_cold_request_s_journey_takes_as_long_as_loader_and_device_took() -> None:
    there = world()
    there.submit("cold", ref=adapter("a"))
    there.run()
    (wait,) = there.answers["cold"].waits
    way = wait.journey
    assert way is not None and way.load_id == 0 and way.is_over
    assert wait.start_s <= way.began_s <= way.loaded_s <= way.claimed_s <= way.upload_s
    # The world looks every millisecond.
    assert LOAD_S <= way.loaded_s - way.began_s < LOAD_S + 0.002
    assert UPLOAD_S <= way.resident_s - way.upload_s < UPLOAD_S + 0.002
    assert way.resident_s <= wait.end_s < way.resident_s + 0.002


def test_all_who_waited_for_one_load_tell_of_it_and_who_came_later_does_not() -> None:
    there = world()
    ref = adapter("a")
    for name in ("first", "second"):
        there.submit(name, ref=ref)
        there.step()
    there.run()
    there.submit("later", ref=ref)
    there.run()
    ways = [there.answers[name].waits[0].journey for name in ("first", "second", "later")]
    assert ways[0] is not None and ways[0] is ways[1] and ways[2] is None


def test_an_adapter_that_was_on_its_way_already_is_told_from_its_beginning() -> None:
    there = world()
    ref = adapter("a")
    there.engine.deliver(Prefetch(ref))
    there.step()
    there.clock.sleep(0.02)
    there.submit("r", ref=ref)
    there.run()
    (wait,) = there.answers["r"].waits
    assert wait.journey is not None and wait.journey.began_s < wait.start_s


def test_from_host_memory_there_is_no_load_to_tell_of() -> None:
    there = world(num_pages=24)
    first, second = adapter("a", num_pages=6), adapter("b", num_pages=6)
    for name, ref in (("a", first), ("b", second), ("again", first)):
        there.submit(name, ref=ref)
        there.run()
    way = there.answers["again"].waits[0].journey
    assert isinstance(way, Journey)
    assert way.displaced == (second.key,)
    assert way.load_id == -1 and way.began_s == 0.0 and way.claimed_s > 0.0 and way.is_over


def test_a_failed_load_is_told_with_the_error_to_all_who_waited() -> None:
    there = World(config(), load_s=LOAD_S, fails=lambda ref: GONE)
    for name in ("x", "y"):
        there.submit(name, ref=adapter("bad"))
    there.run()
    for name in ("x", "y"):
        answer = there.answers[name]
        assert answer.finish is FinishReason.ERROR
        (wait,) = answer.waits
        assert wait.journey is not None and not wait.journey.is_over
        assert wait.journey.loaded_s == wait.end_s >= wait.journey.began_s + LOAD_S


def test_one_that_gives_up_tells_how_far_its_adapter_had_come() -> None:
    there = world()
    there.submit("r", ref=adapter("a"))
    there.step()
    there.clock.sleep(0.01)
    there.engine.abort("r")
    there.run()
    (wait,) = there.answers["r"].waits
    assert wait.journey is not None and wait.end_s - wait.start_s >= 0.01
    assert wait.journey.load_id == 0


def test_a_preempted_request_waits_twice() -> None:
    schedule = ScheduleConfig(max_seqs=4, max_step_tokens=16)
    there = world(num_pages=200, schedule=schedule)
    for i in range(6):
        there.submit(f"a{i}", tenant="a", max_tokens=40)
    for _ in range(4):
        there.step()
    for i in range(3):
        there.submit(f"b{i}", tenant="b", max_tokens=40)
    there.run()
    waits = [answer.waits for answer in there.answers.values()]
    num_preemptions = there.engine.scheduler.counters.num_preemptions
    assert sum(len(mine) - 1 for mine in waits) == num_preemptions > 0
    for mine in waits:
        for before, after in pairwise(mine):
            assert before.end_s < after.start_s < after.end_s
