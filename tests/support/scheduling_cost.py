"""How long `schedule` and `commit` take with 256 rows running and 10,000 requests of 1,000 tenants
waiting, in milliseconds of processor time. `python -m tests.support.scheduling_cost` prints JSON,
of every order at every price.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import get_args

from engine.config import AccountConfig, Order, Price
from engine.engine import build_engine
from engine.fake_runner import FakeRunner, counter_token
from engine.plan import Launch, StepPlan
from engine.types import Request, Tenant
from tests.support.simulation import BASE, PASSES, settings
from tests.support.virtual import VirtualClock

ROWS, WAITING, TENANTS = 256, 10_000, 1_000


def measure(
    num_steps: int,
    accounts: AccountConfig,
    *,
    num_tenants: int = TENANTS,
    seconds: Callable[[], float] = time.thread_time,
) -> dict[str, float]:
    """Medians over so many steps, at depth 1, once the rows are full."""
    config = settings(rows=ROWS, num_pages=60_000, accounts=accounts)
    clock = VirtualClock()
    runner = FakeRunner(config, clock, clock.sleep, draw=counter_token, passes=PASSES)
    scheduler = build_engine(config, runner, BASE, clock).scheduler
    rng = random.Random(1)
    for number in range(ROWS + WAITING):
        prompt = tuple(range(number, number + rng.randint(20, 80)))
        tenant = Tenant(f"t{number % num_tenants}")
        request = Request(f"r{number}", tenant, None, prompt, rng.randint(200, 600))
        scheduler.submit(request, clock())
    in_flight: deque[Launch] = deque()
    times: list[tuple[float, float]] = []
    while len(times) < num_steps:
        started = seconds()
        plan = scheduler.schedule(clock())
        decided = seconds() - started
        assert isinstance(plan, StepPlan)
        in_flight.append(runner.launch(plan))
        if len(in_flight) > 1:
            result = in_flight.popleft().wait()
            started = seconds()
            scheduler.commit(result)
            if scheduler.num_running >= ROWS - 1:
                times.append((decided, seconds() - started))
    return {
        "num_running": scheduler.num_running,
        "num_waiting": scheduler.num_waiting,
        "schedule_ms": 1e3 * median(decided for decided, _ in times),
        "commit_ms": 1e3 * median(settled for _, settled in times),
    }


def table(num_steps: int) -> dict[str, dict[str, float]]:
    """By order and price."""
    choices = itertools.product(get_args(Order), get_args(Price))
    return {
        f"{order}, {price}": measure(num_steps, AccountConfig(order=order, price=price))
        for order, price in choices
    }


if __name__ == "__main__":
    print(json.dumps(table(num_steps=400), indent=2))
