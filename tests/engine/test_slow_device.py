"""A noisy neighbour on a device like two cores of a CPU: few rows, steps of half a second that a
hundred and fifty tokens fill, and requests that are small beside `locality_slack_tokens`."""

from __future__ import annotations

import random
from functools import cache

import pytest

from engine.messages import Prefetch
from engine.pass_costs import PassCosts
from engine.types import Tenant
from tests.support.simulation import (
    Ask,
    Simulation,
    adapter,
    merged,
    percentile,
    poisson,
    settings,
)

ROWS, MAX_STEP_S, TOKEN_S = 32, 0.5, 2.65e-3
PASSES = PassCosts(
    mixed=tuple((n, 0.065 + TOKEN_S * n) for n in range(8, 513, 4)),
    decode=tuple((n, 0.065 + TOKEN_S * n) for n in range(1, ROWS + 1)),
    mixed_read_s=0.0,
    decode_read_s=0.0,
)
QUIET = [Tenant(f"quiet{i}") for i in range(4)]
NOISY = Tenant("noisy")
OWN = {tenant.id: adapter(tenant.id, tenant.id) for tenant in QUIET}
FIFTEEN = [adapter("noisy", f"noisy{i}") for i in range(15)]
NUM_QUIET, SETTLE_S = 300, 10.0


def simulation() -> Simulation:
    sim = Simulation(
        settings(rows=ROWS, num_pages=4000, max_step_tokens=512, max_step_s=MAX_STEP_S, depth=0),
        passes=PASSES,
    )
    for ref in (*OWN.values(), *FIFTEEN):
        sim.engine.deliver(Prefetch(ref, is_ordered=True))
    while sim.clock() < 1.0:
        sim.step(1.0)
    return sim


def quiet(rng: random.Random, tenant: Tenant) -> Ask:
    num_output = rng.randint(8, 16)
    return Ask(tenant, rng.randint(48, 96), num_output, num_output, OWN[tenant.id])


def loud(rng: random.Random) -> Ask:
    num_output = rng.randint(32, 64)
    return Ask(NOISY, rng.randint(256, 512), num_output, num_output, rng.choice(FIFTEEN))


@cache
def capacity() -> float:
    """Quiet requests a second, all four always backlogged."""
    rng, sim = random.Random(1), simulation()
    sim.backlog([lambda t=t: quiet(rng, t) for t in QUIET], 90.0)
    return sum(job.end_s is not None and job.end_s > 30.0 for job in sim.jobs.values()) / 60.0


def ttft_s(seed: int, is_beside: bool) -> list[float]:
    """Of the quiet, ascending."""
    rng, noise, sim = random.Random(seed), random.Random(seed + 100), simulation()
    rate = capacity() / 2 / len(QUIET)
    start_s = sim.clock() + SETTLE_S
    streams = [poisson(rng, rate, lambda t=t: quiet(rng, t), start_s) for t in QUIET]
    if is_beside:
        for _ in range(2 * ROWS):
            sim.submit(loud(noise))
        streams.append(poisson(noise, 20 * rate, lambda: loud(noise), sim.clock()))
    names = sim.play(merged(*streams), start_s + NUM_QUIET / (rate * len(QUIET)), 2 * ROWS)
    names = [name for name in names if name.startswith("quiet")]
    while any(sim.jobs[name].first_s is None for name in names):
        sim.step(1e9)
    return sim.ttfts(names)


@pytest.mark.parametrize("seed", range(4))
def test_the_quiet_wait_twice_as_long_at_most_and_a_step(seed: int) -> None:
    alone, beside = ttft_s(seed, False), ttft_s(seed, True)
    assert percentile(beside, 0.95) <= 2 * percentile(alone, 0.95) + MAX_STEP_S
