"""What `w_local` buys and costs: forty adapters of eight equal tenants on a virtual clock."""

from __future__ import annotations

import random
from collections import defaultdict

from engine.config import AccountConfig
from engine.messages import Prefetch
from engine.types import Tenant
from tests.support.simulation import Ask, Simulation, adapter, percentile, poisson, settings

SWEEP = (0.0, 0.0005, 0.002, 0.01, 0.05)
TENANTS = [Tenant(f"t{i}") for i in range(8)]
REFS = {
    tenant.id: [adapter(tenant.id, f"{tenant.id}-{i}", 2) for i in range(5)] for tenant in TENANTS
}
RATE, ROWS = 40.0, 24


def measure(w_local: float, seconds: float = 20.0) -> dict[str, float]:
    """Queue time in seconds by adapter, p99 of each: the median adapter's and the worst's; and the
    p99 of all requests. Popularity is Zipf(1.0) over a tenant's adapters."""
    rng = random.Random(7)
    sim = Simulation(settings(rows=ROWS, accounts=AccountConfig(w_local=w_local)))
    for refs in REFS.values():
        for ref in refs:
            sim.engine.deliver(Prefetch(ref, is_ordered=True))
    while sim.clock() < 3.0:
        sim.step(3.0)

    def make() -> Ask:
        tenant = rng.choice(TENANTS)
        (ref,) = rng.choices(REFS[tenant.id], [1 / rank for rank in range(1, 6)])
        return Ask(tenant, rng.randint(128, 768), rng.randint(8, 40), 64, ref)

    start_s = sim.clock()
    names = sim.play(poisson(rng, RATE, make, start_s), start_s + seconds)
    sim.drain()
    waits: dict[str, list[float]] = defaultdict(list)
    for job in (sim.jobs[name] for name in names):
        assert job.ask.ref is not None
        waits[job.ask.ref.key].append(job.queue_s)
    by_adapter = sorted(percentile(sorted(w), 0.99) for w in waits.values())
    whole = sorted(chain for w in waits.values() for chain in w)
    return {
        "w_local": w_local,
        "requests": len(names),
        "adapter_p99_median_s": percentile(by_adapter, 0.5),
        "adapter_p99_worst_s": by_adapter[-1],
        "p99_s": percentile(whole, 0.99),
        "seconds": sim.clock() - start_s,
    }
