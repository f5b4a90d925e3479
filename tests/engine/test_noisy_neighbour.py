"""What tenants' requests wait for their first token beside one that asks for everything, and among
two hundred of which most ask for little: the real engine on a virtual clock."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from itertools import chain

import pytest

from engine.config import AccountConfig
from engine.messages import Prefetch
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

ROWS, PAGES, PAGE_TOKENS = 128, 20_000, 64
MAX_STEP_S = 0.06
NUM_QUIET = 1000


@dataclass(frozen=True, slots=True)
class Setup:
    """prompt, output: of a quiet request, on average. share: of the capacity, that the quiet ask
    for. noisy: prompt and output of the neighbour's."""

    seed: int = 11
    prompt: int = 512
    output: int = 48
    share: float = 0.5
    noisy: tuple[int, int] = (8192, 1500)


QUIET = [Tenant(f"quiet{i}") for i in range(8)]
NOISY = Tenant("noisy")
OWN = {tenant.id: adapter(tenant.id, tenant.id) for tenant in QUIET}
THIRTY = [adapter("noisy", f"noisy{i}") for i in range(30)]


def simulation(order: str = "deficit") -> Simulation:
    """The quiet tenants' adapters are there: how long a cold one takes is another matter."""
    sim = Simulation(
        settings(
            rows=ROWS,
            num_pages=PAGES,
            page_tokens=PAGE_TOKENS,
            max_step_s=MAX_STEP_S,
            accounts=AccountConfig(order=order),  # type: ignore[arg-type]
        )
    )
    for ref in OWN.values():
        sim.engine.deliver(Prefetch(ref, is_ordered=True))
    while sim.clock() < 1.0:
        sim.step(1.0)
    return sim


@cache
def capacity(prompt: int, output: int) -> float:
    """Quiet requests a second, all eight always backlogged."""
    sim = simulation()
    makes = [lambda t=t: Ask(t, prompt, output, 2 * output, OWN[t.id]) for t in QUIET]
    sim.backlog(makes, 9.0, depth=8)
    return sum(job.end_s is not None and job.end_s > 4.0 for job in sim.jobs.values()) / 5.0


def quiet_ttft_s(
    order: str,
    num: int,
    beside_noise: bool,
    setup: Setup = Setup(),
) -> list[float]:
    """Ascending, of `num` quiet requests. The neighbour comes first, holds
    every row, and goes on asking for 20 times what a quiet one does. Those without a token when
    the last has come have waited until then at least."""
    rng = random.Random(setup.seed)
    sim = simulation(order)
    rate = capacity(setup.prompt, setup.output) * setup.share / len(QUIET)

    def loud() -> Ask:
        return Ask(NOISY, *setup.noisy, 2048, rng.choice(THIRTY))

    def quiet(tenant: Tenant) -> Ask:
        num_prompt = rng.randint(setup.prompt // 2, setup.prompt * 3 // 2)
        num_output = rng.randint(setup.output // 2, setup.output * 3 // 2)
        return Ask(tenant, num_prompt, num_output, 2 * setup.output, OWN[tenant.id])

    if beside_noise:
        for _ in range(3 * ROWS):
            sim.submit(loud())
        while sim.engine.scheduler.num_running < ROWS:
            sim.step(1e9)
    start_s = sim.clock()
    streams = [poisson(rng, rate, lambda t=t: quiet(t), start_s) for t in QUIET]
    if beside_noise:
        streams.append(poisson(rng, 20 * rate, loud, start_s))
    names = sim.play(merged(*streams), start_s + 1.15 * num / (rate * len(QUIET)), 384)
    jobs = [sim.jobs[name] for name in names if name.startswith("quiet")][:num]
    assert len(jobs) == num
    if order != "fcfs":
        while any(job.first_s is None for job in jobs):
            sim.step(1e9)
    return sorted((job.first_s or sim.clock()) - job.asked_s for job in jobs)


def test_a_neighbour_that_asks_for_everything_costs_the_quiet_little() -> None:
    alone = quiet_ttft_s("deficit", NUM_QUIET, beside_noise=False)
    beside = quiet_ttft_s("deficit", NUM_QUIET, beside_noise=True)
    assert percentile(beside, 0.99) <= 1.5 * percentile(alone, 0.99) + MAX_STEP_S
    assert percentile(beside, 0.5) <= 1.5 * percentile(alone, 0.5) + MAX_STEP_S


@pytest.mark.parametrize(
    "setup",
    [
        Setup(seed=4, noisy=(64, 1900)),
        Setup(seed=1, share=0.3),
        Setup(seed=2, noisy=(4096, 300)),
    ],
)
def test_so_it_is_with_other_lengths_shares_and_draws(setup: Setup) -> None:
    """docs/fairness.md says where it ends."""
    alone = quiet_ttft_s("deficit", 130, False, setup)
    beside = quiet_ttft_s("deficit", 130, True, setup)
    assert percentile(beside, 0.98) <= 1.5 * percentile(alone, 0.98) + MAX_STEP_S


def test_first_come_first_served_lets_the_neighbour_through() -> None:
    """The same traffic, so that it is seen that the test above can fail."""
    alone = quiet_ttft_s("fcfs", 120, beside_noise=False)
    beside = quiet_ttft_s("fcfs", 120, beside_noise=True)
    assert percentile(beside, 0.99) > 5 * (percentile(alone, 0.99) + MAX_STEP_S)


def test_the_least_popular_tenants_wait_no_longer_than_the_median_one() -> None:
    """200 tenants under Zipf(1.0), each with its own adapter, at the edge of what can be served:
    the bottom decile pooled, beside the twenty in the middle. Four independent draws."""
    tenants = [Tenant(f"t{i:03}") for i in range(200)]
    refs = [adapter(tenant.id, tenant.id, 2) for tenant in tenants]
    weights = [1 / (rank + 1) for rank in range(200)]
    bottom: list[float] = []
    middle: list[float] = []
    for seed in range(4):
        rng = random.Random(seed)
        sim = Simulation(settings(rows=64))

        def make(rng: random.Random = rng) -> Ask:
            rank = rng.choices(range(200), weights)[0]
            num_prompt, num_output = rng.randint(64, 448), rng.randint(16, 112)
            return Ask(tenants[rank], num_prompt, num_output, 160, refs[rank])

        waits: dict[int, list[float]] = {rank: [] for rank in range(200)}
        names = sim.play(poisson(rng, 55.0, make), 15.0)
        for job in (sim.jobs[name] for name in names):
            rank = tenants.index(job.ask.tenant)
            while job.first_s is None and rank >= 90:
                sim.step(1e9)
            waits[rank].append(job.ttft_s if rank >= 90 else 0.0)
        bottom += chain.from_iterable(waits[rank] for rank in range(180, 200))
        middle += chain.from_iterable(waits[rank] for rank in range(90, 110))
    assert len(bottom) >= 40 and len(middle) >= 80
    assert percentile(sorted(bottom), 0.99) <= 2 * percentile(sorted(middle), 0.99)
