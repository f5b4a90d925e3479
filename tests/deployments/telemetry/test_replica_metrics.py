"""What a replica tells of its core is what the core did."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.resources import Resource

from deployments.telemetry import instruments as i
from deployments.telemetry.instrument import OTHER
from deployments.telemetry.metering import Metering
from deployments.telemetry.replica_metrics import ReplicaMetrics
from deployments.telemetry.section import TelemetrySection
from engine.config import ScheduleConfig
from engine.messages import Ready
from tests.support.telemetry_points import told
from tests.support.world import PAGE_BYTES, World, adapter, config


@pytest.fixture
def meter():
    return Metering(TelemetrySection(top_tenants=2), Resource({}), [])


async def test_the_numbers_of_a_core_are_told_by_its_replica(meter):
    world = World(config(schedule=ScheduleConfig(max_seqs=2, max_step_tokens=64)), load_s=0.03)
    children = SimpleNamespace(num_restarts=3)
    metrics = ReplicaMetrics(meter, world.residency, children, lambda: 1234.5)
    metrics.start(Ready(64, PAGE_BYTES, 1.0))
    refs = [adapter(f"a{k}", num_pages=3, tenant="abc"[k]) for k in range(3)]
    for turn in range(2):
        for ref in refs:
            world.submit(f"{ref.name}-{turn}", tenant=ref.tenant, ref=ref, prompt=6, max_tokens=30)
    world.submit("base", tenant="a", prompt=6, max_tokens=3)

    def step():
        if (output := world.step()) is not None:
            metrics.heard(output)

    scheduler = world.engine.scheduler
    while scheduler.num_running or scheduler.num_waiting or not world.engine.idle:
        step()
    world.clock.sleep(1.1)
    step()
    step()

    num_plans = sum(bool(plan.spans) for plan in world.device.plans)
    steps = told(meter, i.STEPS)
    assert steps == {("true",): 0, ("false",): num_plans}
    assert told(meter, i.STEP_DURATION)[()][0] == told(meter, i.STEP_ADAPTERS)[()][0] == num_plans
    queue = {tenant: num for (tenant,), (num, _) in told(meter, i.TENANT_QUEUE).items()}
    assert queue == {"a": 3, "b": 2, OTHER: 2}, "two labels, and the rest together"
    assert sum(num for num, _ in told(meter, i.ADAPTER_QUEUE).values()) == 7
    assert told(meter, i.ARRIVALS) == {("device",): 0, ("host",): 0, ("cold",): 6}
    assert told(meter, i.LOADS) == {("store", "request", "ok"): 3}
    assert told(meter, i.LOAD_DURATION)[("store",)] == (3, pytest.approx(0.09))
    assert told(meter, i.CORE_TOKENS) == {
        ("prompt",): 7 * 6,
        ("cached",): scheduler.counters.cached_tokens,
        ("output",): 6 * 30 + 3,
    }
    arena = {use: value for (use,), value in told(meter, i.ARENA).items()}
    assert arena["adapters"] == 9 * PAGE_BYTES and arena["sequences"] == 0
    assert sum(arena.values()) == 63 * PAGE_BYTES, "all but the page for padding"
    assert told(meter, i.ARENA_ADAPTERS) == {(): 3}
    assert told(meter, i.RESIDENTS)[("device",)] == 3
    assert told(meter, i.QUEUE_REQUESTS) == {("running",): 0, ("warming",): 0, ("ready",): 0}
    assert told(meter, i.LOADER_RESTARTS) == {(): 3} and told(meter, i.CORE_STARTED) == {(): 1234.5}
    metrics.close()
    metrics.close()
    await asyncio.sleep(0)


async def test_a_closed_replica_exports_no_more(meter, caplog):
    metrics = ReplicaMetrics(meter, World(config()).residency, SimpleNamespace(), lambda: 0.0)
    metrics.start(Ready(64, PAGE_BYTES, 1.0))
    await asyncio.sleep(0)
    await asyncio.to_thread(metrics.close)
    await asyncio.sleep(0.01)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not caplog.records
