"""A changed limit reaches the replicas without a request of its tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deployments.orders.tier_orders import limits_order, read_limits
from engine.errors import InvalidRequest, Unavailable
from engine.messages import SetLimits
from engine.types import Tenant
from tests.support.ingress import InProcess, ScriptedModel, World, bearer


class DeafOnce(ScriptedModel):
    """No replica can be reached by the first order of limits."""

    is_deaf = True

    async def tell(
        self, method: str, order: Mapping[str, Any], timeout_s: float
    ) -> list[Mapping[str, Any]]:
        if method == "set_limits" and self.is_deaf:
            self.is_deaf = False
            raise Unavailable("none")
        return await super().tell(method, order, timeout_s)


def told(world: World) -> list[SetLimits]:
    return [read_limits(order) for method, order in world.model.told if method == "set_limits"]


async def test_a_change_is_told_until_it_is_heard_and_then_no_more(tmp_path: Path) -> None:
    world = World.build(tmp_path, ingress={"registry_poll_s": 0.02})
    world.model = DeafOnce()
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        changed = await client.patch("/v1/tenants/t1", json={"hard_kv_share": 0.25, "weight": 2})
        assert changed.status_code == 200
        async with asyncio.timeout(60):
            while not told(world):
                await asyncio.sleep(0.01)
        await client.patch("/v1/tenants/t2", json={"hard_kv_share": 0.5})
        async with asyncio.timeout(60):
            while len(told(world)) < 2:
                await asyncio.sleep(0.01)
    assert told(world) == [
        SetLimits((Tenant("t1", weight=2, hard_kv_share=0.25),)),
        SetLimits((Tenant("t2", hard_kv_share=0.5),)),
    ]


def test_an_order_of_another_release_is_read_as_far_as_it_is_known() -> None:
    order = limits_order([Tenant("t", weight=2.0)])
    order["tenants"][0]["newer"] = 1
    assert read_limits(order) == SetLimits((Tenant("t", weight=2.0),))
    for bad in ({**order, "v": 2}, {"v": 1}, {"v": 1, "tenants": [1]}, {"v": 1, "tenants": [{}]}):
        with pytest.raises(InvalidRequest):
            read_limits(bad)
