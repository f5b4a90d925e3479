"""Tenants and adapters are made through a real ingress, and then asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deployments.ingress.ingress import create_app
from engine.adapters.store import TENSORS
from loadgen.client.roster import Roster
from loadgen.client.runner import Result, Runner, session
from loadgen.client.service import Service, ServiceError, v1
from loadgen.client.stream import Endpoint
from loadgen.publishing import Kind, publish
from loadgen.synthetic import Base
from loadgen.workloads.arrival import Schedule
from loadgen.workloads.catalogue import scenario
from tests.support.ingress import LocalServer, World

SETTINGS = {
    "duration_s": "2", "rates": "4,8", "shares": "1,3", "input_tokens": "3", "output_tokens": "2"
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World.build(tmp_path)
    world.model.replies = [{"pids": {"replica": 11, "core": 22}}, {"pids": {"core": 33}}]
    yield world
    world.registry.close()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with LocalServer(create_app(world.parts())) as url:
        yield url


@pytest.fixture
def kind(tmp_path: Path) -> Kind:
    folder = tmp_path / "base"
    folder.mkdir()
    tensors = {"model.layers.0.self_attn.q_proj.weight": np.zeros((8, 8), np.float32)}
    save_file(tensors, folder / "model.safetensors")
    return Kind(Base.read(folder), ranks=(2, 4), modules=("q_proj",), seed=1)


def weighted() -> Schedule:
    return scenario("vtc-weighted", SETTINGS).build(1)


async def published(
    world: World, url: str, kind: Kind, known: Roster | None, told: list[tuple[int, int]]
) -> Roster:
    schedule = weighted()
    async with session() as http:
        service = Service(http, url, world.keys["admin"])
        return await publish(
            service, schedule.adapters, kind, known, schedule.weights,
            lambda done, total: told.append((done, total)),
        )  # fmt: skip


async def test_what_is_missing_is_made_once(world: World, url: str, kind: Kind) -> None:
    told: list[tuple[int, int]] = []
    roster = await published(world, url, kind, None, told)
    assert told == [(1, 2), (2, 2)]
    assert [(m.tenant, m.models) for m in roster.members] == [
        ("load-t000", ("load-t000/a0000",)), ("load-t001", ("load-t001/a0001",))
    ]  # fmt: skip
    assert world.tenants.get("load-t001").weight == 3
    sizes = [
        world.store.size(f"uploads/{o.tenant}/{o.source.upload}/{TENSORS}")
        for o in sorted(world.control.orders, key=lambda o: o.tenant)
    ]
    # Ranks in turn: 2 * rank * 8 numbers of 2 bytes, after headers of about the same length.
    assert sizes[0] is not None and sizes[1] is not None
    assert sizes[1] - sizes[0] == pytest.approx(2 * 2 * 8 * 2, abs=16)
    told.clear()
    assert await published(world, url, kind, roster, told) == roster
    assert told == []


async def test_a_lost_roster_gets_new_keys_for_its_own_tenants_alone(
    world: World, url: str, kind: Kind
) -> None:
    first = await published(world, url, kind, None, [])
    again = await published(world, url, kind, None, [])
    assert {m.key for m in first.members}.isdisjoint(m.key for m in again.members)
    assert [m.models for m in again.members] == [m.models for m in first.members]


async def test_published_adapters_answer(world: World, url: str, kind: Kind) -> None:
    roster = await published(world, url, kind, None, [])
    schedule = weighted()
    binding = roster.bind(schedule.adapters, fold=False)
    runner = Runner(schedule, binding, Endpoint(v1(url), "chat"), time.monotonic)
    async with session() as http:
        service = Service(http, url, world.keys["admin"])
        result: Result = await runner.run(http, service)
        assert await service.pids() == {"replica_pid": "11", "core_pid": "22", "core_pid_1": "33"}
    assert [o.status for o in result.outcomes] == ["ok"] * len(schedule.arrivals)
    assert {o.completion_tokens for o in result.outcomes} == {2}
    assert {o.cached_tokens for o in result.outcomes} == {1}
    assert {o.model for o in result.outcomes} == {"load-t000/a0000", "load-t001/a0001"}
    assert result.samples[0].replicas[0]["pids"]["core"] == 22


async def test_a_refusal_is_the_service_s_words(world: World, url: str) -> None:
    async with session() as http:
        with pytest.raises(ServiceError, match="HTTP 403"):
            await Service(http, url, world.keys["t1"]).replicas()
        with pytest.raises(ServiceError, match="can't be reached"):
            await Service(http, "http://127.0.0.1:9", "key").replicas()
