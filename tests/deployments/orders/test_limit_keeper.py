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


def told(world: World) -> list[SetLimits]:
    return [read_limits(order) for method, order in world.model.told if method == "set_limits"]


async def test_a_change_is_told_until_all_have_heard_it_and_then_no_more(tmp_path: Path) -> None:
    world = World.build(tmp_path, ingress={"registry_poll_s": 0.02})
    world.model = HardOfHearing()
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        changed = await client.patch("/v1/tenants/t1", json={"hard_kv_share": 0.25, "weight": 2})
        assert changed.status_code == 200
        async with asyncio.timeout(60):
            while len(told(world)) < 2:
                await asyncio.sleep(0.01)
        await client.patch("/v1/tenants/t2", json={"hard_kv_share": 0.5})
        async with asyncio.timeout(60):
            while len(told(world)) < 3:
                await asyncio.sleep(0.01)
    assert told(world) == [
        SetLimits((Tenant("t1", weight=2, hard_kv_share=0.25),)),
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
