"""Situations of operation that averages hide: crowds, days, neighbours, cold adapters, launches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadgen.workloads import draws, lengths
from loadgen.workloads.arrival import Arrival
from loadgen.workloads.popularity import choose, zipf_weights
from loadgen.workloads.scenario import Scenario, adapter_name, tenant_name

SOURCE = "loraplex"


@dataclass(frozen=True, kw_only=True)
class Situation(Scenario):
    """Some tenants with some adapters each, popularity Zipf over a tenant's adapters."""

    source: ClassVar[str] = SOURCE
    tenants: int = 10
    adapters_each: int = 5
    zipf: float = 1.0
    inputs: tuple[int, ...] = (32, 256)
    outputs: tuple[int, ...] = (16, 128)

    def tenant_arrivals(self, seed: int, tenant: int, times: Sequence[float]) -> Iterator[Arrival]:
        """Requests of one tenant at `times`, over its adapters."""
        weights = zipf_weights(self.adapters_each, self.zipf)
        picks = choose(draws.stream(seed, "adapters", tenant), weights, len(times))
        yield from self.asked(seed, tenant, times, [tenant * self.adapters_each + i for i in picks])

    def asked(
        self, seed: int, tenant: int, times: Sequence[float], adapters: Sequence[int]
    ) -> Iterator[Arrival]:
        random = draws.stream(seed, "lengths", tenant, adapters[0] if adapters else 0)
        sizes = lengths.uniform(random, self.inputs, self.outputs, len(times))
        for time_s, adapter, (num_in, num_out) in zip(times, adapters, sizes, strict=True):
            yield Arrival(time_s, tenant_name(tenant), adapter_name(adapter), num_in, num_out)


@dataclass(frozen=True, kw_only=True)
class FlashCrowd(Situation):
    """Steady traffic; from a third of the time on, for a sixth of it, one tenant's rate is
    `surge` times as high, all of it on one adapter that nobody asked for before."""

    name: ClassVar[str] = "flash-crowd"
    rate: float = 4.0
    surge: float = 20.0

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        each = self.rate * self.rate_factor / self.tenants
        for tenant in range(self.tenants):
            times = draws.poisson_times(draws.stream(seed, tenant), each, self.duration_s)
            yield from self.tenant_arrivals(seed, tenant, times)
        crowd = draws.poisson_times(
            draws.stream(seed, "crowd"), each * (self.surge - 1), self.duration_s / 6
        )
        new = self.tenants * self.adapters_each
        times = [draws.whole(self.duration_s / 3 + t) for t in crowd]
        yield from self.asked(seed, 0, times, [new] * len(times))


@dataclass(frozen=True, kw_only=True)
class Diurnal(Situation):
    """Days, `days` of them in all: each tenant's rate is a sine between 0 and twice its mean, and
    tenants are spread over the time zones."""

    name: ClassVar[str] = "diurnal"
    rate: float = 4.0
    days: float = 2.0
    zones: int = 3

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        mean = self.rate * self.rate_factor / self.tenants
        day_s = self.duration_s / self.days
        for tenant in range(self.tenants):
            zone = (tenant % self.zones) / self.zones

            def rate_at(t: float, zone: float = zone) -> float:
                return mean * (1 - math.cos(2 * math.pi * (t / day_s + zone)))

            random = draws.stream(seed, tenant)
            times = draws.varying_times(random, rate_at, 2 * mean, self.duration_s)
            yield from self.tenant_arrivals(seed, tenant, times)


@dataclass(frozen=True, kw_only=True)
class NoisyNeighbour(Situation):
    """Quiet tenants with short requests; in the middle third the first tenant floods the service
    with long prompts, as many a second as `noise` says."""

    name: ClassVar[str] = "noisy-neighbour"
    duration_s: float = 180.0
    tenants: int = 4
    adapters_each: int = 1
    quiet: float = 0.5
    noise: float = 10.0
    noise_inputs: tuple[int, ...] = (256, 512)
    noise_outputs: tuple[int, ...] = (64, 128)
    inputs: tuple[int, ...] = (16, 64)
    outputs: tuple[int, ...] = (16, 32)

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        f, third = self.rate_factor, self.duration_s / 3
        for tenant in range(1, self.tenants):
            random = draws.stream(seed, tenant)
            times = draws.poisson_times(random, self.quiet * f, self.duration_s)
            yield from self.tenant_arrivals(seed, tenant, times)
        noise = draws.poisson_times(draws.stream(seed, "noise"), self.noise * f, third)
        random = draws.stream(seed, "noise lengths")
        sizes = lengths.uniform(random, self.noise_inputs, self.noise_outputs, len(noise))
        for t, (num_in, num_out) in zip(noise, sizes, strict=True):
            time_s = draws.whole(third + t)
            yield Arrival(time_s, tenant_name(0), adapter_name(0), num_in, num_out)


@dataclass(frozen=True, kw_only=True)
class ColdStart(Situation):
    """One tenant's warm traffic, and `cold` adapters of others that are asked for the first time,
    evenly over the run, `burst` requests at once each."""

    name: ClassVar[str] = "cold-start"
    duration_s: float = 180.0
    tenants: int = 10
    warm: float = 1.0
    cold: int = 60
    burst: int = 3

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        warm = draws.poisson_times(
            draws.stream(seed, "warm"), self.warm * self.rate_factor, self.duration_s
        )
        yield from self.asked(seed, 0, warm, [0] * len(warm))
        for index in range(self.cold):
            time_s = draws.whole((index + 0.5) * self.duration_s / self.cold)
            tenant = 1 + index % (self.tenants - 1)
            burst = [time_s] * self.burst
            yield from self.asked(seed, tenant, burst, [index + 1] * self.burst)


@dataclass(frozen=True, kw_only=True)
class Campaign(Situation):
    """A launch: the first tenant opens conversations of `turns` turns with a new adapter, none
    before a quarter of the time, `peak` a second at half of it, none after three quarters; each
    turn's prompt begins with the one before. The others go on as ever."""

    name: ClassVar[str] = "campaign"
    rate: float = 2.0
    peak: float = 2.0
    turns: int = 4
    pause_s: float = 5.0
    turn_tokens: int = 64

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        each = self.rate * self.rate_factor / self.tenants
        for tenant in range(self.tenants):
            times = draws.poisson_times(draws.stream(seed, tenant), each, self.duration_s)
            yield from self.tenant_arrivals(seed, tenant, times)
        peak, half = self.peak * self.rate_factor, self.duration_s / 2

        def rate_at(t: float) -> float:
            return peak * max(0.0, 1 - abs(t - half) / (self.duration_s / 4))

        opened = draws.varying_times(draws.stream(seed, "campaign"), rate_at, peak, self.duration_s)
        for number, time_s in enumerate(opened):
            yield from self._conversation(seed, number, time_s)

    def _conversation(self, seed: int, number: int, time_s: float) -> Iterator[Arrival]:
        random = draws.stream(seed, "conversation", number)
        adapter = adapter_name(self.tenants * self.adapters_each)
        for turn in range(self.turns):
            num_out = int(random.randint(self.outputs[0], self.outputs[1]))
            num_in = (turn + 1) * self.turn_tokens
            yield Arrival(time_s, tenant_name(0), adapter, num_in, num_out, f"campaign-{number}")
            time_s = draws.whole(time_s + random.exponential(self.pause_s))
