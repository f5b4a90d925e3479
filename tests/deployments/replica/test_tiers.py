"""What a replica is told about its tiers, carried out by its real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deployments.orders.tier_orders import (
    SlotPin,
    TenantLimits,
    limits_order,
    pins_order,
    prefetch_order,
    retry_order,
)
from deployments.replica.replica import Replica
from engine.errors import InvalidRequest
from engine.types import Tenant, adapter_to_wire
from tests.support.replicas import (
    LOADER,
    adapter,
    call,
    engine_config,
    replica_config,
    request,
    until,
)

SLOT = 3


@pytest_asyncio.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    config = replica_config(tmp_path, engine_config(tmp_path, step_s=0.002))
    made = Replica(config, slot=lambda: SLOT, leave=int, loader=LOADER)
    await made.start()
    yield made
    made.shutdown()


async def places(replica: Replica) -> dict[str, list[str]]:
    residency: dict[str, list[str]] = (await replica.status())["residency"]
    return residency


async def until_places(replica: Replica, **wanted: list[str]) -> None:
    async with asyncio.timeout(60):
        while {name: (await places(replica))[name] for name in wanted} != wanted:
            await asyncio.sleep(0.005)


async def test_an_ordered_prefetch_says_how_far_it_is(replica: Replica) -> None:
    ref = adapter("support")
    order = prefetch_order(ref, to_device=True, ordered=True, slots=[SLOT])
    assert await replica.prefetch(order) == {"slot": SLOT, "tier": "cold", "why": None}
    await until_places(replica, device=[ref.key])
    assert await replica.prefetch(order) == {"slot": SLOT, "tier": "device", "why": None}
    other = prefetch_order(adapter("other"), to_device=True, ordered=True, slots=[SLOT + 1])
    assert await replica.prefetch(other) is None


async def test_a_warm_up_that_fails_says_why(replica: Replica) -> None:
    ref = adapter("killer")
    order = prefetch_order(ref, to_device=False, ordered=True)
    await replica.prefetch(order)
    await until(lambda: bool(replica._children.load_failures.reasons()))
    await until_places(replica, loading=[])  # told apart from the reason, a moment later
    answer = await replica.prefetch(order)
    assert answer is not None and answer["tier"] == "failed"
    assert "ended the loader" in answer["why"]


async def test_what_was_mended_is_told_and_tried_again(replica: Replica, tmp_path: Path) -> None:
    ref = adapter("missing", uri=str(tmp_path / "object"))
    order = prefetch_order(ref, to_device=True, ordered=True)

    async def ask() -> dict[str, Any]:
        async for batch in replica.generate(call(request(ref=ref, max_tokens=2))):
            event = batch[-1]
        return event

    async def failure() -> str | None:
        await until(lambda: bool(replica._children.load_failures.reasons()))
        answer = await replica.prefetch(order)
        assert answer is not None and answer["tier"] == "failed"
        return str(answer["why"])

    first = (await ask())["error"]
    assert first["code"] == "object_missing" and first["retry_after_s"] is None
    assert (await ask())["error"] == first, "remembered, and told alike"
    assert "no object" in str(await failure())
    again = await replica.prefetch({**order, "retry": True})
    assert again == {"slot": SLOT, "tier": "cold", "why": None}
    assert "no object" in str(await failure()), "nobody has mended it"
    (tmp_path / "object").touch()
    assert "error" in await ask()
    await replica.retry(retry_order([ref]))
    assert (await ask())["finish"] == "length"
    assert (await replica.status())["failed"] == {}


async def test_pins_are_this_slot_s_and_replace_each_other(replica: Replica) -> None:
    mine, others = adapter("mine"), adapter("others")
    pins = [SlotPin(mine, True, (SLOT, 7)), SlotPin(others, False, (7,))]
    assert await replica.set_pins(pins_order(pins)) == {"slot": SLOT, "num_pins": 1}
    await until_places(replica, pinned=[mine.key], device=[mine.key])
    stats = await replica.record_routing_stats()
    assert stats["pinned"] == [mine.key], "the router sees it, too"
    await replica.set_pins(pins_order([]))
    await until_places(replica, pinned=[], device=[mine.key])


async def test_a_share_that_is_lowered_ends_an_answer_that_needs_more(replica: Replica) -> None:
    events: list[dict[str, Any]] = []
    lowered = TenantLimits(Tenant("acme", hard_kv_share=0.0001), rev=7)
    async for batch in replica.generate(call(request(max_tokens=3000))):
        if not events:
            await replica.set_limits(limits_order([lowered]))
        events += batch
    assert events[-1]["error"]["code"] == "kv_share_exceeded"


@pytest.mark.parametrize("now", [False, True])
async def test_a_retired_version_leaves_every_tier(
    replica: Replica, tmp_path: Path, now: bool
) -> None:
    copy = tmp_path / "copy-on-disk"
    copy.touch()
    ref = adapter("support", uri=str(copy))
    events: list[dict[str, Any]] = []

    async def read() -> None:
        async for batch in replica.generate(call(request(ref=ref, max_tokens=200))):
            events.extend(batch)

    reader = asyncio.create_task(read())
    await until(lambda: bool(events))
    await replica.drop(adapter_to_wire(ref), now)
    await reader
    if now:
        assert events[-1]["error"]["code"] == "adapter_retired"
        assert events[-1]["error"]["status"] == 404
    else:
        assert events[-1]["finish"] == "length"
    await until_places(replica, loading=[], host=[], device=[])
    await until(lambda: not copy.exists())


async def test_an_order_of_another_release_changes_nothing(replica: Replica) -> None:
    with pytest.raises(InvalidRequest):
        await replica.prefetch({"v": 2})
    with pytest.raises(InvalidRequest):
        await replica.set_pins({"v": 2})
    with pytest.raises(InvalidRequest):
        await replica.retry({"v": 2})
