"""A changed limit reaches the replicas without a request of its tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.orders.tier_orders import read_limits
from engine.errors import Unavailable
from engine.types import Tenant
from tests.support.ingress import InProcess, ScriptedModel, World, bearer


class HardOfHearing(ScriptedModel):
    """No replica can be reached by the first order of limits; one of them is slow to answer the
    second."""

    num_told = 0

    async def tell_all(self, method: str, order: Mapping[str, Any], timeout_s: float) -> bool:
        self.num_told += 1
        if self.num_told == 1:
            raise Unavailable("none")
        await super().tell_all(method, order, timeout_s)
        return self.num_told > 2


class Hangs(ScriptedModel):
    """A replica that doesn't answer the first order of limits before it has had the second."""

    async def tell_all(self, method: str, order: Mapping[str, Any], timeout_s: float) -> bool:
        await super().tell_all(method, order, timeout_s)
        while len(self.told) < 2:
            await asyncio.sleep(0.01)
        return True


def told(world: World) -> list[list[Tenant]]:
    orders = [order for method, order in world.model.told if method == "set_limits"]
    return [[one.tenant for one in read_limits(order)] for order in orders]


async def until_told(world: World, num_times: int) -> None:
    async with asyncio.timeout(60):
        while len(told(world)) < num_times:
            await asyncio.sleep(0.01)


async def test_a_change_is_told_until_all_have_heard_it_and_then_no_more(tmp_path: Path) -> None:
    world = World.build(tmp_path, ingress={"registry_poll_s": 0.02})
    world.model = HardOfHearing()
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        changed = await client.patch("/v1/tenants/t1", json={"hard_kv_share": 0.25, "weight": 2})
        assert changed.status_code == 200
        await until_told(world, 2)
        await client.patch("/v1/tenants/t2", json={"hard_kv_share": 0.5})
        await until_told(world, 3)
    first, second = Tenant("t1", weight=2, hard_kv_share=0.25), Tenant("t2", hard_kv_share=0.5)
    assert told(world) == [[first], [first], [second]]


async def test_a_change_waits_for_no_replica_that_lets_the_one_before_wait(tmp_path: Path) -> None:
    world = World.build(tmp_path, ingress={"registry_poll_s": 0.02})
    world.model = Hangs()
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        for weight in (2, 3):
            await client.patch("/v1/tenants/t1", json={"weight": weight})
            await until_told(world, weight - 1)
    assert told(world) == [[Tenant("t1", weight=2)], [Tenant("t1", weight=3)]]
