"""The whole loop on a device that checks every plan, at depth 0 and 1, with a virtual clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig, ScheduleConfig
from engine.engine import ITEM_BYTES, build_engine
from engine.errors import InvalidRequest
from engine.fake_runner import FakeRunner, counter_token
from engine.types import FinishReason
from tests.support.virtual import VirtualClock
from tests.support.world import World, adapter, assert_nothing_is_held, config, expected, schedule

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
STOP = 7


@DEPTHS
def test_every_token_arrives_once_and_in_order(depth: int) -> None:
    world = World(config(schedule=schedule(depth)))
    for i in range(10):
        world.submit(f"r{i}", prompt=3 + 4 * i, max_tokens=1 + i)
    world.run()
    for i in range(10):
        answer = world.answers[f"r{i}"]
        assert answer.tokens == expected(3 + 4 * i, 1 + i)
        assert answer.finish is FinishReason.LENGTH
    assert_nothing_is_held(world)


@DEPTHS
def test_rows_of_different_adapters_and_of_the_base_share_steps(depth: int) -> None:
    world = World(config(schedule=schedule(depth, max_seqs=9)), load_s=0.0)
    refs = [None, adapter("a"), adapter("b", 3)]
    for i in range(9):
        world.submit(f"r{i}", max_tokens=12, ref=refs[i % 3])
    world.run()
    assert all(a.finish is FinishReason.LENGTH for a in world.answers.values())
    assert max(len({s.adapter for s in plan.spans}) for plan in world.device.plans) == 3
    assert_nothing_is_held(world)


def test_at_depth_1_the_next_plan_is_launched_before_the_last_is_committed() -> None:
    world = World(config(schedule=schedule(1)))
    world.submit("r", prompt=3, max_tokens=6)
    world.step()
    assert world.answers["r"].tokens == [], "the first plan is launched, not yet committed"
    world.step()
    assert [plan.id for plan in world.device.plans] == [0, 1]
    assert world.answers["r"].tokens == expected(3, 1)
    assert world.device.plans[1].spans[0].token_on_device
    world.run()
    assert len(world.device.plans) == 6, "no step is launched for a token beyond max_tokens"


@DEPTHS
def test_a_stop_token_ends_a_sequence_and_is_not_part_of_it(depth: int) -> None:
    world = World(config(schedule=schedule(depth)))
    world.device.draw = lambda span: STOP if span.start >= 8 else counter_token(span)
    world.submit("stops", prompt=5, max_tokens=20, stop=(STOP,))
    world.submit("ignores", prompt=5, max_tokens=6)
    world.run()
    assert world.answers["stops"].tokens == expected(5, 4)
    assert world.answers["stops"].finish is FinishReason.STOP
    assert world.answers["ignores"].tokens == [*expected(5, 4), STOP, STOP]
    assert_nothing_is_held(world)


def test_a_row_that_had_ended_drops_its_late_token_and_its_row_is_used_again_at_once() -> None:
    """At depth 1 the end shows when one more token of that row is already on the device."""
    world = World(config(schedule=schedule(1, max_seqs=1)))
    world.device.draw = lambda span: STOP if span.start >= 4 else counter_token(span)
    world.submit("first", prompt=3, max_tokens=20, stop=(STOP,))
    world.submit("second", prompt=(1, 2), max_tokens=2)
    world.run_until(lambda: world.answers["first"].finish is not None)
    assert len(world.device.touched) == 1, "the row's late token is still on the device"
    assert world.engine.scheduler.num_running == 0
    world.run()
    assert world.answers["first"].tokens == expected(3, 2)
    assert world.answers["second"].tokens == expected(2, 2)
    assert_nothing_is_held(world)


@DEPTHS
def test_a_row_that_is_not_finite_fails_alone_and_leaves_nothing_in_the_prefix_cache(
    depth: int,
) -> None:
    world = World(config(schedule=schedule(depth)))
    world.device.fails = lambda span: span.sequence.id == "bad" and span.start >= 10
    world.submit("bad", prompt=9, max_tokens=10)
    world.submit("good", prompt=9, max_tokens=10)
    world.run()
    bad, good = world.answers["bad"], world.answers["good"]
    assert bad.finish is FinishReason.ERROR
    assert bad.error is not None and bad.error.code == "not_finite"
    assert good.tokens == expected(9, 10)
    assert_nothing_is_held(world)


@DEPTHS
def test_a_common_beginning_is_computed_once(depth: int) -> None:
    world = World(config(schedule=schedule(depth)))
    prompt = tuple(range(18))
    world.submit("first", prompt=prompt)
    world.run()
    world.submit("again", prompt=prompt, max_tokens=3)
    world.submit("salted", prompt=prompt, salt="x")
    world.submit("other tenant", prompt=prompt, tenant="u")
    world.submit("adapted", prompt=prompt, ref=adapter("a"))
    world.run()
    cached = {name: answer.num_cached for name, answer in world.answers.items()}
    assert cached["again"] == [16, 0, 0], "told in the first output"
    assert all(sum(cached[name]) == 0 for name in ("first", "salted", "other tenant", "adapted"))
    assert world.answers["again"].tokens == expected(18, 3)
    assert_nothing_is_held(world)


def test_the_prefix_cache_can_be_off() -> None:
    world = World(config(schedule=schedule(0, prefix_cache=False)))
    for name in ("first", "again"):
        world.submit(name, prompt=tuple(range(18)))
        world.run()
    assert sum(world.answers["again"].num_cached) == 0
    assert world.engine.scheduler.prefix.num_pages == 0


@DEPTHS
def test_what_can_never_be_served_is_refused_and_changes_nothing(depth: int) -> None:
    world = World(config(num_pages=32, host_bytes=1 << 16, schedule=schedule(depth)))
    wrong_base = replace(adapter("w"), base_revision="another")
    world.submit("empty", prompt=())
    world.submit("none", max_tokens=0)
    world.submit("long", prompt=60, max_tokens=5)
    world.submit("too large for the device", ref=adapter("d", 16))
    world.submit("too large for the host", ref=adapter("h", 65))
    world.submit("wrong base", ref=wrong_base)
    world.run()
    errors = {name: answer.error for name, answer in world.answers.items()}
    assert all(a.finish is FinishReason.ERROR and not a.tokens for a in world.answers.values())
    assert [e.status for e in errors.values() if e] == [400, 400, 400, 422, 422, 422]
    assert "65" in errors["long"].message and "64" in errors["long"].message
    for name, needed, room in (("device", 16, 15), ("host", 65, 64)):
        message = errors[f"too large for the {name}"].message
        assert str(needed * 1024) in message and str(room * 1024) in message
    assert not world.loads
    assert_nothing_is_held(world)


def test_an_id_in_progress_is_refused() -> None:
    world = World(config())
    world.submit("r")
    world.submit("r")
    output = world.engine.step()
    assert output is not None
    error = output.sequences[0].error
    assert error is not None and error.status == 409


@DEPTHS
@pytest.mark.parametrize("turns", range(14))
def test_an_abort_gives_everything_back_in_any_state(depth: int, turns: int) -> None:
    """Waiting for a load, an upload, half read, decoding, in flight, finished."""
    world = World(config(schedule=schedule(depth)), load_s=0.002, upload_s=0.002)
    ref = adapter("a")
    world.submit("r", prompt=40, max_tokens=5, ref=ref)
    world.submit("base", prompt=40, max_tokens=5)
    for _ in range(turns):
        world.step()
    is_over = world.answers["r"].finish is not None
    world.engine.abort("r")
    world.engine.abort("r")
    world.engine.abort("unknown")
    world.run()
    assert world.answers["r"].finish is (FinishReason.LENGTH if is_over else FinishReason.ABORT)
    assert world.answers["base"].tokens == expected(40, 5)
    assert_nothing_is_held(world)


def test_an_abort_can_settle_a_request_as_done() -> None:
    world = World(config())
    world.submit("r", max_tokens=20)
    for _ in range(3):
        world.step()
    world.engine.abort("r", FinishReason.STOP)
    world.run()
    assert world.answers["r"].finish is FinishReason.STOP


def test_an_upload_waits_until_no_launched_plan_may_touch_its_place() -> None:
    """Pages that just came free are used by the compute stream at once; the copy stream is not
    ordered with it. The device of these tests objects to any upload that comes too early."""
    steps = schedule(2, max_step_tokens=64, prefix_cache=False)
    world = World(config(num_pages=25, schedule=steps), load_s=0.0)
    for name in ("one", "two"):
        world.submit(name, prompt=37, max_tokens=24)
    world.submit("stays", prompt=4, max_tokens=40)
    for _ in range(4):
        world.step()
    world.submit("new", ref=adapter("a", 8), max_tokens=2)
    world.run_until(lambda: bool(world.residency.host))
    assert world.engine.scheduler.arena.num_free < 8
    assert world.engine.scheduler.num_running == 3 and len(world.device.touched) == 2
    world.engine.abort("one")
    world.engine.abort("two")
    world.run()
    assert world.answers["new"].finish is FinishReason.LENGTH


def test_a_stopped_engine_wakes_for_messages_only() -> None:
    world = World(config(), load_s=5.0, upload_s=0.004)
    assert world.engine.idle
    world.submit("r", max_tokens=2, ref=adapter("a"))
    world.step()
    assert world.step() is None and world.engine.idle, (
        "the loader is at it: its answer is a message"
    )
    world.finish_load(world.loading.pop()[1])
    world.step()
    assert world.engine.step() is None and not world.engine.idle, "an upload is to be polled"
    world.run()
    assert world.step() is None and world.engine.idle


def test_what_whole_pages_waste_is_reported() -> None:
    world = World(config())
    whole = adapter("a")
    world.submit("r", ref=replace(whole, num_elements=whole.num_elements - 10))
    world.run()
    assert world.engine.scheduler.stats(0.0).rounding_bytes == 10 * ITEM_BYTES["float32"]


def test_counters_come_once_a_second_and_residency_when_it_changes() -> None:
    world = World(config(), step_s=0.1)
    world.submit("r", prompt=6, max_tokens=35, ref=adapter("a"))
    world.run()
    assert len(world.stats) == 4
    last = world.engine.scheduler.stats(0.0)
    assert (last.prompt_tokens, last.output_tokens, last.num_loads) == (6, 35, 1)
    assert [(u.tenant, u.prompt_tokens, u.output_tokens) for u in last.usage] == [("t", 6, 35)]
    assert last.step_p50_s == last.step_p99_s == pytest.approx(0.1)
    key = adapter("a").key
    assert (world.residency.loading, world.residency.host, world.residency.device) == (
        (),
        (key,),
        (key,),
    )


def test_a_configuration_that_cannot_serve_is_refused() -> None:
    clock = VirtualClock()
    small = config(num_pages=16)
    with pytest.raises(InvalidRequest, match="takes 16"):
        build_engine(small, fake(small, clock, 16), "", clock)
    narrow = config(schedule=ScheduleConfig(max_seqs=8, max_step_tokens=8))
    with pytest.raises(InvalidRequest, match="max_step_tokens"):
        build_engine(narrow, fake(narrow, clock, 64), "", clock)


def fake(settings: EngineConfig, clock: VirtualClock, num_pages: int) -> FakeRunner:
    runner = FakeRunner(settings, clock, clock.sleep)
    runner.num_pages = num_pages
    return runner
