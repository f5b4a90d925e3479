"""Who gives up pages first, and how many a tenant may have."""

from __future__ import annotations

import pytest

from engine.config import ScheduleConfig
from engine.types import FinishReason, Request, Tenant
from tests.support.world import PAGE_TOKENS, World, config

DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def world_of(num_pages: int, depth: int = 0, **fields: int) -> World:
    schedule = ScheduleConfig(**{"max_seqs": 16, "max_step_tokens": 128, **fields}, depth=depth)
    return World(config(num_pages=num_pages + 1, max_model_len=64, schedule=schedule))


def cached(world: World, tenant: str) -> int:
    return world.engine.scheduler.prefix.num_idle_of(tenant)


def held(world: World, tenant: str) -> int:
    running = world.engine.scheduler._running
    return running.num_pages_of(tenant) + cached(world, tenant)


def leave_prefixes(world: World, tenant: Tenant, num: int, pages: int = 4) -> None:
    """Answers of so many pages each, which stay cached."""
    for i in range(num):
        prompt = pages * PAGE_TOKENS
        world.submit(f"{tenant.id}-cached-{i}", tenant=tenant, prompt=prompt, max_tokens=1)
        world.run()


def test_cached_prefixes_of_the_tenant_furthest_above_its_share_go_first() -> None:
    """Though they were used last."""
    world = world_of(48)
    leave_prefixes(world, Tenant("small"), 2)
    leave_prefixes(world, Tenant("large"), 9)
    assert (cached(world, "small"), cached(world, "large")) == (8, 36)
    for i in range(4):
        world.submit(f"new{i}", tenant="new", prompt=4 * PAGE_TOKENS, max_tokens=12)
    world.run_until(lambda: world.engine.scheduler.num_running == 4)
    assert cached(world, "small") == 8 and cached(world, "large") <= 36 - 12
    world.run()


def test_cached_prefixes_go_before_anybodys_running_work() -> None:
    world = world_of(48)
    leave_prefixes(world, Tenant("idle"), 5)
    for i in range(10):
        world.submit(f"r{i}", tenant="ab"[i % 2], prompt=4 * PAGE_TOKENS - 2, max_tokens=2)
    world.run()
    assert world.engine.scheduler.counters.num_preemptions == 0
    assert world.engine.scheduler.cache.reclaim.num_prefixes > 0


@DEPTHS
def test_above_a_soft_share_pages_are_borrowed_and_given_back(depth: int) -> None:
    """An eighth of 64 pages is its own; while nobody else asks it has them all."""
    world = world_of(64, depth, max_preemptions=2)
    modest = Tenant("modest", soft_kv_share=1 / 8)
    for i in range(6):
        world.submit(f"m{i}", tenant=modest, prompt=38, max_tokens=24)
    world.run_until(lambda: held(world, "modest") > 48)
    preempted = world.engine.scheduler.counters.num_preemptions
    for i in range(5):
        world.submit(f"o{i}", tenant="other", prompt=38, max_tokens=8)
    for _ in range(5):
        world.step()
    assert held(world, "other") >= 20, "two of its requests at least"
    assert 0 < world.engine.scheduler.counters.num_preemptions - preempted <= 2 * 5
    world.run()
    assert all(answer.finish is FinishReason.LENGTH for answer in world.answers.values())


@DEPTHS
def test_above_a_hard_share_a_tenant_never_gets(depth: int) -> None:
    world = world_of(64, depth)
    bounded = Tenant("bounded", hard_kv_share=0.25)
    for i in range(8):
        world.submit(f"b{i}", tenant=bounded, prompt=14, max_tokens=20)
    world.submit("other", tenant="other", prompt=14, max_tokens=20)
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, held(world, "bounded"))
        return all(answer.finish for answer in world.answers.values())

    world.run_until(done)
    assert 12 <= most <= 16, "a quarter of 64 pages, its cached prefixes counted"
    assert all(answer.finish is FinishReason.LENGTH for answer in world.answers.values())


def test_a_request_larger_than_its_tenants_hard_share_is_refused_with_the_numbers() -> None:
    world = world_of(64)
    world.submit("r", tenant=Tenant("t", hard_kv_share=0.125), prompt=30, max_tokens=4)
    world.step()
    error = world.answers["r"].error
    assert error is not None and error.code == "kv_share_exceeded"
    assert "36 tokens" in error.message and "hold 32" in error.message


def test_shares_travel_in_the_wire_format_and_an_older_sender_has_none() -> None:
    request = Request("r", Tenant("t", soft_kv_share=0.5, hard_kv_share=0.75), None, (1,), 1)
    wire = request.to_wire()
    assert Request.from_wire(wire) == request
    for name in ("soft_kv_share", "hard_kv_share"):
        del wire["tenant"][name]
    assert Request.from_wire(wire).tenant == Tenant("t")
