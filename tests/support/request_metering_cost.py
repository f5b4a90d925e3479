"""What counting costs an ingress: microseconds of processor time of one thread for a request, of a
thousand tenants with 100,000 adapters; milliseconds for reading everything, and for a ranking.
`python -m tests.support.request_metering_cost` prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator
from typing import Any

from opentelemetry.sdk.resources import Resource

from deployments.rest.answers import Event
from deployments.telemetry.metering import Metering
from deployments.telemetry.request_metrics import RequestMetrics
from deployments.telemetry.section import TelemetrySection
from engine.types import AdapterRef, Tenant

TENANTS, ADAPTERS = 1000, 100_000
FIRST: Event = {"i": 0, "text": "x", "tokens": 1}
LAST: Event = {
    "i": 0,
    "text": "x",
    "tokens": 1,
    "finish": "stop",
    "prompt_tokens": 3,
    "cached_tokens": 0,
    "completion_tokens": 2,
}


async def _answer() -> AsyncGenerator[list[Event], None]:
    yield [FIRST]
    yield [LAST]


def measure(num_requests: int) -> dict[str, Any]:
    return asyncio.run(_measure(num_requests))


async def _measure(num_requests: int) -> dict[str, Any]:
    metering = Metering(TelemetrySection(), Resource({}), [])
    metrics = RequestMetrics(metering, time.monotonic)
    rng = random.Random(1)
    asked = []
    for _ in range(num_requests):
        number = min(ADAPTERS - 1, int(rng.paretovariate(0.5)))
        owner = f"t{number % TENANTS}"
        ref = AdapterRef(owner, f"a{number}", f"{number:064x}", "b", (8,), 1, 1, "")
        asked.append((Tenant(owner), ref))
    started = time.thread_time()
    for tenant, ref in asked:
        with metrics.begin(tenant) as meter:
            meter.resolved(ref, 1)
            async for _ in meter.over(_answer()):
                pass
    counted = time.thread_time()
    data = metering.read()
    read = time.thread_time()
    metering.adapters.rank()
    ranked = time.thread_time()
    points = data.resource_metrics[0].scope_metrics[0].metrics
    return {
        "request_us": 1e6 * (counted - started) / num_requests,
        "read_ms": 1e3 * (read - counted),
        "rank_ms": 1e3 * (ranked - read),
        "num_series": sum(len(metric.data.data_points) for metric in points),
    }


if __name__ == "__main__":
    print(json.dumps(measure(20_000), indent=2))
