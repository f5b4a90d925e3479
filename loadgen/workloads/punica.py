"""The workload of Punica (arXiv 2310.18547)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from loadgen.workloads import draws, lengths
from loadgen.workloads.arrival import Arrival
from loadgen.workloads.popularity import PUNICA, punica_counts
from loadgen.workloads.scenario import Scenario, WorkloadError, adapter_name, tenant_name


@dataclass(frozen=True, kw_only=True)
class Punica(Scenario):
    """One of four popularities: distinct, uniform, skewed or identical, with lengths like ShareGPT.

    Punica sends its requests at once; rate 0 does so too, any other spreads them as a Poisson
    process.
    """

    name: ClassVar[str] = "punica"
    source: ClassVar[str] = "Punica, benchmarks: 1000 requests, skewed is geometric with 1.5"
    ends_on_time: ClassVar[bool] = False

    requests: int = 1000
    popularity: str = "skewed"
    tenants: int = 10
    rate: float = 4.0
    max_len: int = 2048

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        if self.popularity not in PUNICA:
            raise WorkloadError(f"popularity is one of {', '.join(PUNICA)}.")
        counts = punica_counts(self.popularity, self.requests)
        order = [index for index, count in enumerate(counts) for _ in range(count)]
        draws.stream(seed, "adapters").shuffle(order)
        sizes = lengths.punica(draws.stream(seed, "lengths"), self.max_len, self.requests)
        times = self._times(seed)
        for time_s, index, (num_in, num_out) in zip(times, order, sizes, strict=True):
            tenant = tenant_name(index % self.tenants)
            yield Arrival(time_s, tenant, adapter_name(index), num_in, num_out)

    def _times(self, seed: int) -> list[float]:
        rate = self.rate * self.rate_factor
        if rate == 0:
            return [0.0] * self.requests
        return draws.gamma_times(draws.stream(seed, "times"), rate, 1.0, self.requests)
