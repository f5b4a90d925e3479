"""Which prompts are read in a step: in account order, in chunks, within its size."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine.config import AccountConfig, ScheduleConfig
from tests.support.world import World, adapter, config, last, tokens_of

DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def schedule(depth: int = 0, **fields: float) -> ScheduleConfig:
    """Steps take all that they may: how prompts are spread is another matter (test_pacing)."""
    unspread = ScheduleConfig(max_seqs=4, max_step_tokens=16, prefill_steps=1, depth=depth)
    return replace(unspread, **fields)


@DEPTHS
def test_decoding_rows_go_first_and_prompts_get_the_rest_in_chunks(depth: int) -> None:
    world = World(config(schedule=schedule(depth)))
    world.submit("d", prompt=2, max_tokens=30)
    world.step()
    world.submit("p", prompt=40, max_tokens=1)
    world.run()
    chunks = [tokens_of(plan) for plan in world.device.plans if "p" in tokens_of(plan)]
    assert [chunk["p"] for chunk in chunks] == [15, 15, 10]
    assert all(chunk["d"] == 1 for chunk in chunks)


@DEPTHS
def test_a_pass_is_never_larger_than_max_step_tokens(depth: int) -> None:
    world = World(config(num_pages=200, schedule=schedule(depth, max_seqs=8)))
    for i in range(20):
        world.submit(f"r{i}", prompt=1 + (7 * i) % 50, max_tokens=3, tenant=f"t{i % 3}")
    world.run()
    assert max(plan.num_tokens for plan in world.device.plans) == 16


def test_half_read_prompts_and_newcomers_share_the_step_in_account_order() -> None:
    """A long prompt of a tenant that has been served much waits for a newcomer of one served less,
    half read or not."""
    world = World(config(num_pages=200, schedule=schedule()))
    world.submit("long", tenant="rich", prompt=60, max_tokens=1)
    world.step()
    assert last(world) == {"long": 16}
    world.submit("new", tenant="poor", prompt=20, max_tokens=4)
    world.step()
    assert last(world) == {"new": 16}
    world.step()
    assert last(world) == {"new": 4, "long": 12}


def test_a_step_is_sized_by_its_measured_cost() -> None:
    world = World(config(num_pages=200, schedule=schedule(max_step_tokens=64, max_step_s=0.05)))
    world.device.step_s, world.device.token_s = 0.01, 0.002
    for i in range(6):
        world.submit(f"r{i}", prompt=60, max_tokens=2)
    world.run()
    sizes = [plan.num_tokens for plan in world.device.plans]
    assert sizes[0] == 64, "nothing is known of the cost before the first step"
    assert max(sizes[4:]) == 20, "0.01 s + 20 x 0.002 s = 0.05 s"


def test_prompts_get_on_even_where_decoding_alone_takes_too_long() -> None:
    world = World(config(num_pages=200, schedule=schedule(max_step_s=0.001)))
    for i in range(4):
        world.submit(f"r{i}", prompt=30, max_tokens=30)
    world.run()
    prompts = [p for p in world.device.plans if any(s.num_tokens > 1 for s in p.spans)]
    assert all(max(s.num_tokens for s in p.spans) <= 4 for p in prompts[1:])


@pytest.mark.parametrize("has_a_row", [False, True])
def test_a_large_request_is_not_starved_by_an_endless_stream_of_small_ones(
    has_a_row: bool,
) -> None:
    """Whether its tenant is due a row or, having one already, waits for more than its share."""
    world = World(config(num_pages=20, schedule=schedule(max_seqs=8)))
    number = 0

    def stream() -> None:
        nonlocal number
        while world.engine.scheduler.num_waiting < 6:
            world.submit(f"s{number}", tenant="s", prompt=4, max_tokens=3 + number % 9)
            number += 1
        world.step()

    for _ in range(5):
        stream()
    if has_a_row:
        world.submit("row", tenant="l", prompt=2, max_tokens=60)
    stream()
    world.submit("large", tenant="l", prompt=52 if has_a_row else 60, max_tokens=2)
    for _ in range(50):
        stream()
        if world.answers["large"].times:
            return
    raise AssertionError("it starves")


@pytest.mark.parametrize("num_pages", [200, 20])
def test_under_fcfs_rows_are_given_in_the_order_of_submits(num_pages: int) -> None:
    """Whoever's they are, half read ones first, also where it is pages that lack. Those of an
    adapter on its way are passed over until it is here."""
    fcfs = AccountConfig(order="fcfs", default_output=8)
    world = World(config(num_pages=num_pages, schedule=schedule(), accounts=fcfs), load_s=0.5)
    rng = random.Random(4)
    names: dict[bool, list[str]] = {True: [], False: []}
    for i in range(40):
        name, tenant, is_late = f"r{i}", f"t{rng.randrange(6)}", rng.random() < 0.2
        names[is_late].append(name)
        ref = adapter(f"late-{tenant}", 1, tenant) if is_late else None
        prompt, max_tokens = rng.randint(1, 40), rng.randint(1, 9)
        world.submit(name, tenant=tenant, prompt=prompt, max_tokens=max_tokens, ref=ref)
    world.run()
    began: dict[str, None] = {}
    for plan in world.device.plans:
        began |= dict.fromkeys(tokens_of(plan))
    assert [name for name in began if name in names[False]] == names[False]
    assert sorted(began) == sorted(names[False] + names[True])


def test_near_equals_go_by_their_wait_and_a_little_by_what_is_in_the_batch() -> None:
    accounts = AccountConfig(default_output=8, locality_slack_tokens=1000.0, w_local=0.001)
    here, there = adapter("a", 1, "t"), adapter("b", 1, "u")
    world = World(config(schedule=schedule(max_seqs=2), accounts=accounts), load_s=0.0)
    world.submit("one", tenant="t", max_tokens=40, ref=here)
    world.submit("warm", tenant="u", max_tokens=2, ref=there)
    world.run_until(lambda: world.answers["warm"].finish is not None)
    world.submit("blocker", tenant="v", max_tokens=5)
    world.step()
    world.submit("apart", tenant="u", prompt=10, max_tokens=2, ref=there)
    world.clock.sleep(0.005)
    world.submit("along", tenant="w", prompt=10, max_tokens=2, ref=here)
    world.run()
    first = {name: world.answers[name].times[0] for name in world.answers}
    assert first["along"] < first["apart"], "5 ms later, but 10 tokens x 1 ms in its favour"


def test_waiting_behind_ones_own_requests_gives_no_precedence_among_near_equals() -> None:
    accounts = AccountConfig(default_output=8, locality_slack_tokens=1000.0)
    world = World(config(schedule=schedule(max_seqs=1), accounts=accounts))
    for name in ("mine", "mine-too", "mine-as-well"):
        world.submit(name, tenant="t", max_tokens=4)
    world.step()
    world.clock.sleep(0.005)
    world.submit("yours", tenant="u", max_tokens=4)
    world.run()
    first = {name: world.answers[name].times[0] for name in world.answers}
    assert first["mine-too"] < first["yours"] < first["mine-as-well"], "by their turns"
