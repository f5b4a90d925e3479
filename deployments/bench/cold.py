"""Do loads from a slow store disturb those who run?

One replica without Ray, on the fake device. While its streams decode, the same requests come twice:
first each for an adapter that only the store has, then for the same adapters, resident by now.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployments.bench.isolation import WARM_UP_S, Setting, Steps, load, quantile, running, stream

MAX_LOADS = 8


async def measure(setting: Setting, place: Callable[[Path], str]) -> dict[str, Any]:
    """Seconds from token to token of the running sequences, p99, by phase (median over the rounds;
    each has `num_loads` adapters of its own), and their ratio. place: see `isolation.running`."""
    steps = Steps()
    every = dataclasses.replace(setting, num_loads=setting.num_loads * setting.rounds)
    p99: dict[str, list[float]] = {"cold": [], "resident": []}
    with tempfile.TemporaryDirectory() as name:
        async with running(Path(name), every, steps, place, max_loads=MAX_LOADS) as (
            replica,
            refs,
        ):
            streams = [asyncio.create_task(stream(replica, i)) for i in range(setting.num_streams)]
            await asyncio.sleep(WARM_UP_S)
            for i in range(setting.rounds):
                for values in p99.values():
                    steps.take()
                    await load(replica, refs[i :: setting.rounds], setting.phase_s)
                    values.append(quantile(steps.take(), 0.99))
            for task in streams:
                task.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    medians = {phase: statistics.median(values) for phase, values in p99.items()}
    return {
        **dataclasses.asdict(setting),
        "p99_rounds_s": p99,
        "p99_s": medians,
        "p99_ratio": medians["cold"] / medians["resident"],
    }
