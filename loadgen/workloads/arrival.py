"""What a workload is: who asks what of whom, and when. Pure values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loadgen.workloads.popularity import Shares, shares


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come.

    time_s   seconds from the run's start, a whole number of microseconds
    tenant, adapter  the workload's own names, which a roster binds to keys and models
    input_tokens, output_tokens  of the prompt, and at most of the answer; at least 1 each
    session  requests of one session share the beginning of their prompts; "": of none
    """

    time_s: float
    tenant: str
    adapter: str
    input_tokens: int
    output_tokens: int
    session: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A whole workload.

    arrivals    by time
    duration_s  in which they fall
    weights     of tenants whose fair share is not 1
    """

    scenario: str
    seed: int
    parameters: Mapping[str, Any]
    duration_s: float
    arrivals: tuple[Arrival, ...]
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def adapters(self) -> dict[str, list[str]]:
        """Adapters by tenant, both sorted."""
        found: dict[str, set[str]] = {}
        for arrival in self.arrivals:
            found.setdefault(arrival.tenant, set()).add(arrival.adapter)
        return {tenant: sorted(found[tenant]) for tenant in sorted(found)}

    @property
    def shares(self) -> Shares:
        """How the requests spread over adapters."""
        counts: dict[tuple[str, str], int] = {}
        for arrival in self.arrivals:
            key = (arrival.tenant, arrival.adapter)
            counts[key] = counts.get(key, 0) + 1
        return shares(counts.values())

    def with_lengths(self, factor: float) -> Schedule:
        """The same with every length times `factor`, and at least 1."""
        scaled = tuple(
            replace(
                a,
                input_tokens=max(1, round(a.input_tokens * factor)),
                output_tokens=max(1, round(a.output_tokens * factor)),
            )
            for a in self.arrivals
        )
        parameters = {**self.parameters, "length_factor": factor}
        return replace(self, arrivals=scaled, parameters=parameters)

    def digest(self) -> str:
        """Of the arrivals alone: equal digests are equal work."""
        hasher = hashlib.sha256()
        for a in self.arrivals:
            line = (round(a.time_s * 1e6), a.tenant, a.adapter, a.input_tokens, a.output_tokens)
            hasher.update(f"{line} {a.session}\n".encode())
        return hasher.hexdigest()

    def check(self) -> None:
        """Raises AssertionError where an invariant is broken."""
        before = 0.0
        for arrival in self.arrivals:
            assert before <= arrival.time_s, "arrivals are not in order"
            assert arrival.input_tokens >= 1 and arrival.output_tokens >= 1, arrival
            before = arrival.time_s
        assert before <= self.duration_s, "an arrival comes after the end"
        assert all(weight > 0 for weight in self.weights.values())


def in_order(arrivals: Iterable[Arrival]) -> tuple[Arrival, ...]:
    """By time, and by name where that is equal: the order never hangs on how they were made."""
    return tuple(sorted(arrivals, key=lambda a: (a.time_s, a.tenant, a.adapter, a.session)))
