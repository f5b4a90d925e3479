"""What counting costs the core: microseconds of processor time of one thread, of a step of 256 rows
on 64 adapters that ten new requests join. `python -m tests.support.measuring_cost` prints JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median

from engine.engine import build_engine
from engine.fake_runner import FakeRunner
from engine.plan import Span, StepPlan
from engine.sequence import Sequence
from engine.types import Request, Tenant
from tests.support.simulation import BASE, PASSES, STEP_S, adapter, settings
from tests.support.virtual import VirtualClock

ROWS, ADAPTERS, NEW = 256, 64, 10


def measure(num_steps: int, seconds: Callable[[], float] = time.thread_time) -> dict[str, float]:
    """Medians over so many steps. share: of a step of a large GPU (`simulation.STEP_S`)."""
    clock = VirtualClock()
    config = settings(rows=ROWS)
    runner = FakeRunner(config, clock, clock.sleep, passes=PASSES)
    measuring = build_engine(config, runner, BASE, clock).scheduler.measuring
    assert measuring is not None
    refs = [adapter("t", f"a{i}") for i in range(ADAPTERS)]
    tenants = [Tenant(f"t{i}") for i in range(100)]
    sequences = [
        Sequence(Request(f"r{i}", tenants[i % 100], refs[i % ADAPTERS], (1, 2), 5), 0.0)
        for i in range(ROWS)
    ]
    spans = tuple(
        Span(sequence, row, 1, 1, row % ADAPTERS, True, False, ())
        for row, sequence in enumerate(sequences)
    )
    plan = StepPlan(0, spans)
    steps: list[float] = []
    for number in range(num_steps):
        started = seconds()
        measuring.step(plan, STEP_S)
        measuring.admitted(sequences[number % 200 : number % 200 + NEW], 1.0)
        steps.append(seconds() - started)
    counting_s = median(steps)
    return {
        "num_adapters": ADAPTERS,
        "counting_us": 1e6 * counting_s,
        "share": counting_s / STEP_S,
    }


if __name__ == "__main__":
    print(json.dumps(measure(num_steps=2000), indent=2))
