"""Who gives up pages first, and how many a tenant may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ScheduleConfig
from engine.messages import SetLimits
from engine.types import FinishReason, Request, Tenant
from tests.support.world import PAGE_TOKENS, World, adapter, config

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


# A share that changes under what is in progress ---------------------------------------------------


def tell(world: World, tenant: Tenant) -> None:
    world.engine.deliver(SetLimits((tenant,)))


def ask(world: World, tenant: Tenant) -> None:
    """The change comes with the tenant's next request, which is refused itself."""
    world.submit("asks", tenant=tenant, prompt=30, max_tokens=30)


@DEPTHS
@pytest.mark.parametrize("change", [tell, ask])
def test_an_answer_that_outgrows_a_lowered_share_ends_with_the_error(
    depth: int, change: Callable[[World, Tenant], None]
) -> None:
    """It keeps the pages that it has got, fills them, and then it is told."""
    world = world_of(64, depth)
    tenant = Tenant("t")
    world.submit("r", tenant=tenant, prompt=6, max_tokens=50)
    answer = world.answers["r"]
    world.run_until(lambda: len(answer.tokens) == 10)
    change(world, replace(tenant, hard_kv_share=0.0001))
    world.submit("other", tenant="other", max_tokens=30)
    world.run()
    assert answer.finish is FinishReason.ERROR
    assert answer.error is not None and answer.error.code == "kv_share_exceeded"
    assert 10 <= len(answer.tokens) <= 10 + PAGE_TOKENS + depth
    assert (6 + len(answer.tokens) - 1) % PAGE_TOKENS == 0, "the last token was never computed on"
    assert world.answers["other"].finish is FinishReason.LENGTH


@DEPTHS
def test_an_answer_that_ends_within_what_it_holds_is_not_cut(depth: int) -> None:
    world = world_of(64, depth)
    world.submit("r", tenant="t", prompt=6, max_tokens=11)
    world.run_until(lambda: len(world.answers["r"].tokens) == 8)
    tell(world, Tenant("t", hard_kv_share=0.0001))
    world.run()
    assert world.answers["r"].finish is FinishReason.LENGTH


def test_what_has_not_begun_and_no_longer_fits_ends_before_it_costs_anything() -> None:
    world = world_of(64, max_seqs=1)
    world.submit("first", tenant="t", prompt=6, max_tokens=40)
    world.submit("long", tenant="t", prompt=6, max_tokens=40)
    world.submit("short", tenant="t", prompt=6, max_tokens=2)
    world.run_until(lambda: len(world.answers["first"].tokens) == 8)
    tell(world, Tenant("t", hard_kv_share=2 / 64))
    world.run()
    assert world.answers["long"].finish is FinishReason.ERROR
    assert world.answers["long"].tokens == []
    assert world.answers["short"].finish is FinishReason.LENGTH


@DEPTHS
def test_a_lifted_share_lets_in_what_waited_for_it(depth: int) -> None:
    """Without another request of the tenant's."""
    world = world_of(64, depth)
    bounded = Tenant("t", hard_kv_share=0.25)
    for name in ("a", "b"):
        world.submit(name, tenant=bounded, prompt=38, max_tokens=24)
    world.run_until(lambda: len(world.answers["a"].tokens) == 2)
    assert world.engine.scheduler.num_running == 1
    tell(world, Tenant("t"))
    world.step()
    assert world.engine.scheduler.num_running == 2
    world.run()
    assert all(answer.finish is FinishReason.LENGTH for answer in world.answers.values())


PAGES = 24
TURN = st.tuples(
    st.sampled_from("ab"),
    st.one_of(
        st.sampled_from([None, 1, 2, 4, 8, 16]),  # pages that it may hold from now on
        st.tuples(st.integers(1, 30), st.integers(1, 30)),  # a request: prompt, max_tokens
    ),
    st.integers(0, 12),  # steps after it
)


@settings(max_examples=25)
@given(turns=st.lists(TURN, min_size=2, max_size=20), depth=st.integers(0, 1))
def test_whatever_becomes_of_shares_nothing_waits_for_one_for_ever(
    turns: list[tuple[str, int | tuple[int, int] | None, int]], depth: int
) -> None:
    """All come to an end: whole, unless a share was once too small for all of it."""
    world = world_of(PAGES, depth, max_seqs=4)
    limits: dict[str, int | None] = {"a": None, "b": None}
    asked: dict[str, tuple[str, int]] = {}
    least: dict[str, int] = {}

    def tenant(name: str) -> Tenant:
        limit = limits[name]
        return Tenant(name, hard_kv_share=None if limit is None else (limit + 0.5) / PAGES)

    for number, (name, what, num_steps) in enumerate(turns):
        if isinstance(what, tuple):
            prompt, max_tokens = what
            request_id = f"r{number}"
            asked[request_id] = (name, -(-(prompt + max_tokens) // PAGE_TOKENS))
            least[request_id] = limits[name] or PAGES
            world.submit(request_id, tenant=tenant(name), prompt=prompt, max_tokens=max_tokens)
        else:
            limits[name] = what
            tell(world, tenant(name))
            for request_id, (owner, _) in asked.items():
                if owner == name and world.answers[request_id].finish is None:
                    least[request_id] = min(least[request_id], what or PAGES)
        for _ in range(num_steps):
            world.step()
    world.run(4000)
    for request_id, (_, num_pages) in asked.items():
        answer = world.answers[request_id]
        if answer.finish is FinishReason.ERROR:
            assert answer.error is not None and answer.error.code == "kv_share_exceeded"
            assert num_pages > least[request_id]
        else:
            assert answer.finish is FinishReason.LENGTH


def test_weight_and_quotas_change_without_a_request_likewise() -> None:
    world = world_of(64)
    world.submit("r", tenant="t", max_tokens=20, ref=adapter("a", 2, "t"))
    world.run_until(lambda: world.engine.scheduler.num_running == 1)
    scheduler = world.engine.scheduler
    tell(world, Tenant("t", weight=4.0, max_device_bytes=1))
    assert scheduler.accounts.account("t").weight == 4.0
    assert scheduler.cache.reclaim.quotas.over == {"t"}
    tell(world, Tenant("t", weight=0.0))
    assert scheduler.accounts.account("t").weight == 4.0, "nobody can be served with none"
    tell(world, Tenant("unknown", weight=2.0))
    world.run()
    assert world.answers["r"].finish is FinishReason.LENGTH
