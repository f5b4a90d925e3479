"""The router inside a real Ray Serve: what placement promises, seen from the replicas."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeDeploySchema

from router.ring import Ring
from tests.support.echo_replicas import Gate

pytestmark = pytest.mark.ray

KEYS = [f"tenant-{i % 7}/adapter-{i}" for i in range(400)]
APP = "router-tests"


def deploy(num_replicas: int) -> None:
    """As an operator does: a config; `serve.run` again would replace every replica."""
    config = {
        "applications": [
            {
                "name": APP,
                "route_prefix": "/router-tests",
                "import_path": "tests.support.echo_replicas:app",
                "deployments": [{"name": "calm", "num_replicas": num_replicas}],
            }
        ]
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config), _blocking=True)


@pytest.fixture(scope="module")
def client(ray_local: Any) -> Iterator[DeploymentHandle]:
    deploy(4)
    yield serve.get_app_handle(APP)
    serve.delete(APP)


@pytest.fixture
def gate() -> Iterator[Any]:
    gate = Gate.remote()
    yield gate
    ray.kill(gate)


async def homes(client: DeploymentHandle, keys: list[str] = KEYS) -> dict[str, str]:
    """The slot that answers for each key, nearly one call after the other."""
    answers = await client.in_turn.remote("calm", keys)
    return {key: answer["slot"] for key, answer in answers.items()}


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.1)


async def settled(client: DeploymentHandle, num_slots: int) -> None:
    """The router's ring has these slots: a newcomer shows once keys land on it."""

    async def seen() -> bool:
        return len(set((await homes(client, KEYS[:60])).values())) == num_slots

    await until(seen)


async def test_idle_each_adapter_has_one_replica_and_scaling_moves_few(client) -> None:
    """400 adapters over 4 replicas, then 5, then 4 again."""
    await settled(client, 4)
    four = await homes(client)
    assert await homes(client) == four
    ring = Ring(f"slot-{i}" for i in range(4))
    assert four == {key: ring.walk(key)[0] for key in KEYS}

    deploy(5)
    await settled(client, 5)
    five = await homes(client)
    moved = [key for key in KEYS if four[key] != five[key]]
    assert 0 < len(moved) < len(KEYS) / 4
    assert {five[key] for key in moved} == {"slot-4"}

    deploy(4)
    await settled(client, 4)
    assert await homes(client) == four


async def test_a_burst_for_one_adapter_stays_within_the_bound(client, gate) -> None:
    """40 client requests at once, min_bound 1, one ingress: 1.25 x 40 / 4 = 12.5, so 13."""
    await client.settle.remote("strict")
    calls = [client.one.remote("strict", "t/hot", gate) for _ in range(40)]
    inside = await gate.wait_for.remote(40)
    assert max(inside.values()) <= 13
    assert len(inside) == 4
    await gate.open.remote()
    assert len(await asyncio.gather(*calls)) == 40


@pytest.mark.parametrize("num", [2, 8, 40])
async def test_concurrent_calls_inside_one_client_request_all_answer(client, gate, num) -> None:
    await client.settle.remote("strict")
    call = client.at_once.remote("strict", "t/hot", num, gate)
    inside = await gate.wait_for.remote(num)
    assert max(inside.values()) <= -(-5 * num // 16)
    await gate.open.remote()
    assert len(await call) == num


async def test_a_killed_replica_is_replaced_by_its_ring_successor_meanwhile(client) -> None:
    await settled(client, 4)
    before = await client.in_turn.remote("calm", KEYS[:60])
    ring = Ring(f"slot-{i}" for i in range(4))
    key = KEYS[0]
    dead, heir = ring.walk(key)[:2]
    os.kill(before[key]["pid"], signal.SIGKILL)
    assert (await client.one.remote("calm", key))["slot"] == heir

    others = [k for k in KEYS[:60] if before[k]["slot"] != dead]
    assert await homes(client, others) == {k: before[k]["slot"] for k in others}

    async def slot_is_back() -> bool:
        return (await client.one.remote("calm", key))["slot"] == dead

    await until(slot_is_back)
    assert await homes(client, KEYS[:60]) == {k: a["slot"] for k, a in before.items()}


async def test_calls_that_find_every_replica_full_wait_and_are_answered(client, gate) -> None:
    """Four replicas that take 16 each: of 80 calls 64 are let in, and never more at once."""
    calls = [client.one.remote("strict", f"t/{i}", gate) for i in range(80)]
    inside = await gate.wait_for.remote(64)
    assert set(inside.values()) == {16}
    await gate.open.remote()
    assert len(await asyncio.gather(*calls)) == 80
    assert max((await gate.most.remote()).values()) == 16
