"""The synthetic workload of S-LoRA (arXiv 2311.03285)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from numpy.random import RandomState

from loadgen.workloads import draws, lengths
from loadgen.workloads.arrival import Arrival
from loadgen.workloads.popularity import power_indices
from loadgen.workloads.scenario import Scenario, adapter_name, tenant_name


@dataclass(frozen=True, kw_only=True)
class SLora(Scenario):
    """Gamma arrivals over many adapters, popularity by a power law.

    int(rate * duration) requests; gaps Gamma(1/cv², cv²/rate) on the whole stream, so with a large
    cv the last one may come well before or after duration_s. Drawn from one stream in the
    order of the artifact (adapters, inputs, outputs, gaps), so that its seed 42 gives its requests.
    """

    name: ClassVar[str] = "s-lora"
    source: ClassVar[str] = "S-LoRA, artifact; sweeps n, rate, alpha, cv"
    ends_on_time: ClassVar[bool] = False

    adapters: int = 100
    tenants: int = 10
    rate: float = 2.0
    alpha: float = 1.0
    cv: float = 1.0
    inputs: tuple[int, ...] = (8, 512)
    outputs: tuple[int, ...] = (8, 512)

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        random = RandomState(seed)
        rate = self.rate * self.rate_factor
        count = int(rate * self.duration_s)
        indices = power_indices(random, self.alpha, self.adapters, count)
        sizes = lengths.uniform(random, self.inputs, self.outputs, count)
        times = draws.gamma_times(random, rate, self.cv, count)
        for time_s, index, (num_in, num_out) in zip(times, indices, sizes, strict=True):
            tenant = tenant_name(index % self.tenants)
            yield Arrival(time_s, tenant, adapter_name(index), num_in, num_out)
