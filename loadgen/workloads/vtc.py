"""The synthetic workloads of VTC (arXiv 2401.00588): few clients, each with an adapter of its own.

Rates are requests a second. Steady clients begin at a random part of their period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadgen.workloads import draws
from loadgen.workloads.arrival import Arrival
from loadgen.workloads.scenario import Scenario, WorkloadError, adapter_name, tenant_name

SOURCE = "VTC, artifact"


@dataclass(frozen=True, kw_only=True)
class SteadyClients(Scenario):
    """Clients that ask at even intervals.

    on_off_s   > 0: the first client asks in every other period of that length alone
    shares     a client's weight, where they are not alike
    """

    rates: tuple[float, ...]
    input_tokens: int = 256
    output_tokens: int = 256
    on_off_s: float = 0.0
    shares: tuple[float, ...] = ()

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        if self.shares and len(self.shares) != len(self.rates):
            raise WorkloadError("shares must be as many as rates.")
        rates = [rate * self.rate_factor for rate in self.rates]
        for client, times in enumerate(_steady(rates, self.duration_s, self.on_off_s, seed)):
            yield from _asked(client, times, self.input_tokens, self.output_tokens)

    def weights(self) -> Mapping[str, float]:
        return {tenant_name(i): share for i, share in enumerate(self.shares)}


@dataclass(frozen=True, kw_only=True)
class Overload(SteadyClients):
    """Two clients above their share, one twice as fast as the other."""

    name: ClassVar[str] = "vtc-overload"
    source: ClassVar[str] = SOURCE
    duration_s: float = 360.0
    rates: tuple[float, ...] = (1.5, 3.0)


@dataclass(frozen=True, kw_only=True)
class OverloadMany(SteadyClients):
    """Eight clients, five of them faster than the other three."""

    name: ClassVar[str] = "vtc-overload-8"
    source: ClassVar[str] = SOURCE
    duration_s: float = 360.0
    rates: tuple[float, ...] = (0.4, 0.4, 0.4, 0.6, 0.6, 0.6, 0.6, 0.6)


@dataclass(frozen=True, kw_only=True)
class Weighted(SteadyClients):
    """Four clients with weights 1 to 4."""

    name: ClassVar[str] = "vtc-weighted"
    source: ClassVar[str] = SOURCE
    duration_s: float = 360.0
    rates: tuple[float, ...] = (0.8, 0.8, 1.2, 1.6)
    shares: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Proportional(SteadyClients):
    """Three clients: well below their share, below it, and above it."""

    name: ClassVar[str] = "vtc-proportional"
    source: ClassVar[str] = SOURCE
    duration_s: float = 600.0
    rates: tuple[float, ...] = (0.25, 0.5, 1.5)


@dataclass(frozen=True, kw_only=True)
class OnOff(SteadyClients):
    """A client that comes and goes, below its share, beside one above it."""

    name: ClassVar[str] = "vtc-on-off"
    source: ClassVar[str] = SOURCE
    duration_s: float = 600.0
    rates: tuple[float, ...] = (0.5, 2.0)
    on_off_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class OnOffOverload(SteadyClients):
    """A client that comes and goes, above its share while there, beside another above it."""

    name: ClassVar[str] = "vtc-on-off-overload"
    source: ClassVar[str] = SOURCE
    duration_s: float = 600.0
    rates: tuple[float, ...] = (2.0, 3.0)
    on_off_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class PoissonPair(Scenario):
    """Two clients whose requests differ in length: one Poisson stream, split by the rates."""

    rates: tuple[float, ...] = (8.0, 1.5)
    first: tuple[int, ...]
    second: tuple[int, ...]

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        rates = [rate * self.rate_factor for rate in self.rates]
        times = draws.poisson_times(draws.stream(seed, "times"), sum(rates), self.duration_s)
        split = draws.stream(seed, "clients").random_sample(len(times))
        for time_s, part in zip(times, split, strict=True):
            client = int(part > rates[0] / sum(rates))
            num_in, num_out = self.second if client else self.first
            yield Arrival(time_s, tenant_name(client), adapter_name(client), num_in, num_out)


@dataclass(frozen=True, kw_only=True)
class ShortLong(PoissonPair):
    """A client of many short requests beside one of few long ones."""

    name: ClassVar[str] = "vtc-short-long"
    source: ClassVar[str] = SOURCE
    duration_s: float = 600.0
    first: tuple[int, ...] = (64, 64)
    second: tuple[int, ...] = (256, 256)


@dataclass(frozen=True, kw_only=True)
class InOut(PoissonPair):
    """A client of long prompts beside one of long answers."""

    name: ClassVar[str] = "vtc-in-out"
    source: ClassVar[str] = SOURCE
    duration_s: float = 600.0
    first: tuple[int, ...] = (512, 32)
    second: tuple[int, ...] = (32, 512)


@dataclass(frozen=True, kw_only=True)
class Ramp(Scenario):
    """A steady client, and one that grows from below its share to above it."""

    name: ClassVar[str] = "vtc-ramp"
    source: ClassVar[str] = SOURCE
    duration_s: float = 600.0
    steady: float = 0.5
    start: float = 0.2
    end: float = 2.0
    input_tokens: int = 256
    output_tokens: int = 256

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        f, tokens = self.rate_factor, (self.input_tokens, self.output_tokens)
        yield from _asked(0, draws.steady_times(self.steady * f, self.duration_s), *tokens)
        grown = draws.ramp_times(self.start * f, self.end * f, self.duration_s)
        yield from _asked(1, grown, *tokens)


@dataclass(frozen=True, kw_only=True)
class Shift(Scenario):
    """Two clients whose behaviour changes twice: coming and going, both above their share, one
    above it."""

    name: ClassVar[str] = "vtc-shift"
    source: ClassVar[str] = SOURCE
    duration_s: float = 900.0
    on_off_s: float = 60.0
    input_tokens: int = 256
    output_tokens: int = 256

    PHASES: ClassVar[Sequence[tuple[tuple[float, ...], bool]]] = (
        ((0.5, 2.0), True),
        ((1.0, 1.0), False),
        ((0.5, 1.5), False),
    )
    """(rates of both, whether the first comes and goes) in each third."""

    def arrivals(self, seed: int) -> Iterable[Arrival]:
        third = self.duration_s / 3
        for phase, (rates, on_off) in enumerate(self.PHASES):
            period = self.on_off_s if on_off else 0.0
            scaled = [rate * self.rate_factor for rate in rates]
            for client, times in enumerate(_steady(scaled, third, period, seed, phase)):
                shifted = [draws.whole(phase * third + t) for t in times]
                yield from _asked(client, shifted, self.input_tokens, self.output_tokens)


def _steady(
    rates: Sequence[float], duration_s: float, on_off_s: float, seed: int, phase: int = 0
) -> Iterator[list[float]]:
    """Times of each client; the first one's in every other period alone, where there is one."""
    for client, rate in enumerate(rates):
        offset = draws.stream(seed, "offset", phase, client).random_sample() / rate
        times = draws.steady_times(rate, duration_s, offset)
        if client == 0 and on_off_s > 0:
            times = [t for t in times if int(t // on_off_s) % 2 == 0]
        yield times


def _asked(client: int, times: Sequence[float], num_in: int, num_out: int) -> Iterator[Arrival]:
    for time_s in times:
        yield Arrival(time_s, tenant_name(client), adapter_name(client), num_in, num_out)
