"""Who gives up a row or pages, to whom, and that all of it gets done."""

from __future__ import annotations

import pytest

from engine.types import FinishReason, Tenant
from tests.support.world import World, config, last, schedule, tokens_of

DEPTHS = pytest.mark.parametrize("depth", [0, 1])


@DEPTHS
@pytest.mark.parametrize("max_preemptions", [1, 2])
def test_a_tenant_below_its_share_gets_rows_of_the_one_above(
    depth: int, max_preemptions: int
) -> None:
    world = World(config(num_pages=200, schedule=schedule(depth, max_preemptions=max_preemptions)))
    for i in range(6):
        world.submit(f"a{i}", tenant="a", max_tokens=40)
    for _ in range(4):
        world.step()
    assert set(last(world)) == {"a0", "a1", "a2", "a3"}
    for i in range(3):
        world.submit(f"b{i}", tenant="b", max_tokens=40)
    world.step()
    got_in = {name for name in last(world) if name.startswith("b")}
    assert len(got_in) == max_preemptions
    world.step()
    assert set(last(world)) == {"a0", "a1", "b0", "b1"}, "the newest went, and nobody below two"
    for _ in range(5):
        world.step()
    assert set(last(world)) == {"a0", "a1", "b0", "b1"}
    world.run()
    for answer in world.answers.values():
        assert answer.finish is FinishReason.LENGTH and len(answer.tokens) == 40


def test_a_weight_is_a_share_of_rows() -> None:
    world = World(config(num_pages=200, schedule=schedule(max_seqs=8)))
    heavy, light = Tenant("heavy", weight=3.0), Tenant("light")
    for i in range(12):
        world.submit(f"l{i}", tenant=light, max_tokens=50)
    world.step()
    for i in range(12):
        world.submit(f"h{i}", tenant=heavy, max_tokens=50)
    for _ in range(12):
        world.step()
    rows = list(last(world))
    assert sum(name.startswith("h") for name in rows) == 6
    assert sum(name.startswith("l") for name in rows) == 2


def test_every_tenant_is_due_a_row_and_nobody_loses_the_last() -> None:
    world = World(config(num_pages=200, schedule=schedule()))
    for i in range(4):
        world.submit(f"a{i}", tenant="a", max_tokens=50)
    world.step()
    for i in range(8):
        world.submit(f"b{i}", tenant=f"b{i}", max_tokens=50)
    for _ in range(6):
        world.step()
    names = set(last(world))
    assert "a0" in names and len(names) == 4
    assert world.engine.scheduler.stats(0.0).num_preemptions == 3


@DEPTHS
def test_a_preempted_request_is_not_charged_again_and_keeps_its_turn(depth: int) -> None:
    world = World(config(num_pages=200, schedule=schedule(depth)))
    for i in range(5):
        world.submit(f"a{i}", tenant="a", prompt=6, max_tokens=30)
    for _ in range(5):
        world.step()
    world.submit("b", tenant="b", max_tokens=10)
    world.run()
    scheduler = world.engine.scheduler
    assert scheduler.stats(0.0).num_preemptions == 1
    account = scheduler.accounts.account("a")
    assert account.settled == pytest.approx(5 * (6 * 1.0 + 30 * 2.0))
    ends = {name: world.answers[name].times[-1] for name in world.answers}
    assert ends["a3"] < ends["a4"], "it went back to the head of its queue"


@DEPTHS
def test_pages_are_taken_from_the_tenant_above_its_share_of_them(depth: int) -> None:
    """Rows are free, pages are not."""
    world = World(config(num_pages=25, schedule=schedule(depth, max_seqs=16, max_step_tokens=32)))
    for i in range(8):
        world.submit(f"a{i}", tenant="a", prompt=11, max_tokens=20)
    for _ in range(12):
        world.step()
    world.submit("b", tenant="b", prompt=12, max_tokens=4)
    for _ in range(4):
        world.step()
    assert world.answers["b"].times, "it did not wait for one of the others to end"
    world.run()
    assert all(a.finish is FinishReason.LENGTH for a in world.answers.values())


@DEPTHS
@pytest.mark.parametrize("num_tenants", [1, 4])
def test_more_than_memory_can_hold_gets_done_all_the_same(depth: int, num_tenants: int) -> None:
    """Sequences that each grow to nearly all of the memory."""
    world = World(config(num_pages=18, max_model_len=64, schedule=schedule(depth)))
    for i in range(8):
        world.submit(f"r{i}", tenant=f"t{i % num_tenants}", prompt=8, max_tokens=50)
    world.run(4000)
    for answer in world.answers.values():
        assert answer.finish is FinishReason.LENGTH and len(answer.tokens) == 50


@DEPTHS
def test_the_oldest_is_never_preempted(depth: int) -> None:
    world = World(config(num_pages=18, max_model_len=64, schedule=schedule(depth)))
    world.submit("oldest", tenant="a", prompt=8, max_tokens=50)
    world.submit("second", tenant="a", prompt=8, max_tokens=50)
    world.step()
    for i in range(6):
        world.submit(f"b{i}", tenant="b", prompt=8, max_tokens=50)
    world.run(4000)
    plans = [i for i, plan in enumerate(world.device.plans) if "oldest" in tokens_of(plan)]
    assert len(plans) == 50 and plans == list(range(50)), "it ran in every step until its end"
