"""What the service's own counters say of a run, where its admin endpoint offers them.

Counters are totals since a core's start, so what counts is their growth; a core that was replaced
begins again at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.client.run import Sample
from loadgen.report.stats import Quantiles

TOTALS = (
    "num_steps",
    "num_replayed",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "num_preemptions",
    "num_moves",
    "num_evictions",
    "num_loads",
    "busy_s",
    "base_s",
)
TIERS = ("device", "host", "disk", "cold")


@dataclass(frozen=True, slots=True)
class Server:
    """num_replicas: at most, at one time; num_cores: different ones in all, so more of them than
    replicas means that some were replaced.

    totals       growth of `TOTALS` over the run, all replicas together
    hits         requests by the tier in which their adapter was when they came; {}: not offered
    queue_s      mean wait of those that waited, over the samples
    step_p99_s   over the samples of all replicas
    overhead     of the adapters over the step without them; None: not measured there
    resident     (seconds, adapters on the device, in host memory) of each sample
    """

    num_replicas: int
    num_cores: int
    totals: Mapping[str, float]
    hits: Mapping[str, int]
    queue_s: Quantiles | None
    step_p99_s: Quantiles | None
    overhead: float | None
    resident: Sequence[tuple[float, int, int]]

    @property
    def hit_rates(self) -> dict[str, float]:
        """Parts of all requests, by tier."""
        total = sum(self.hits.values())
        return {tier: n / total for tier, n in self.hits.items()} if total else {}


def read_server(samples: Sequence[Sample]) -> Server | None:
    """None where nothing was offered."""
    seen: dict[str, list[Mapping[str, Any]]] = {}
    first_cores: set[str] = set()
    for sample in samples:
        for replica in sample.replicas:
            if replica.get("stats"):
                core = str(replica.get("pids", {}).get("core", replica.get("slot", 0)))
                seen.setdefault(core, []).append(replica["stats"])
        first_cores = first_cores or set(seen)
    if not seen:
        return None
    totals = dict.fromkeys(TOTALS, 0.0)
    hits: Counter[str] = Counter()
    for core, stats in seen.items():
        # What a core had counted before the run is not the run's; one that came later began at 0.
        before: Mapping[str, Any] = stats[0] if core in first_cores else {}
        for name in TOTALS:
            totals[name] += float(stats[-1].get(name, 0)) - float(before.get(name, 0))
        hits.update(dict(stats[-1].get("arrivals", ())))
        hits.subtract(dict(before.get("arrivals", ())))
    every = [stats for core in seen.values() for stats in core]
    base_s = totals["base_s"]
    return Server(
        num_replicas=max(len(sample.replicas) for sample in samples),
        num_cores=len(seen),
        totals=totals,
        hits={tier: hits[tier] for tier in TIERS if hits[tier] > 0},
        queue_s=Quantiles.of(s["queue_s"] for s in every if s.get("num_waiting")),
        step_p99_s=Quantiles.of(s["step_p99_s"] for s in every if s.get("step_p99_s")),
        overhead=totals["busy_s"] / base_s - 1 if base_s else None,
        resident=[_resident(sample) for sample in samples],
    )


def _resident(sample: Sample) -> tuple[float, int, int]:
    places = [replica.get("residency") or {} for replica in sample.replicas]
    device, host = (sum(len(p.get(tier, ())) for p in places) for tier in ("device", "host"))
    return sample.at_s, device, host
