"""What an ingress counts of the two sides of a canary, and how it travels. Pure.

A trial is a canary beside a production version, from when it was set until either changes.
Counters only grow, so what is told twice counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import PRODUCTION

PER_DOUBLING = 8
LEAST_S = 1e-4
NUM_BINS = 24 * PER_DOUBLING
"""Up to 28 minutes; what is longer counts as that."""
MAX_CODES = 8
"""Kinds of error told apart on a side."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Trial:
    """Its identity. number: that of the alias (`Alias.trial`)."""

    model: str
    number: int
    production: str
    canary: str

    @classmethod
    def of(cls, record: AdapterRecord) -> Trial | None:
        """The one that runs, if its gate is on."""
        alias = record.aliases.get(PRODUCTION)
        if alias is None or alias.canary is None or not alias.gate:
            return None
        return cls(record.model, alias.trial, alias.digest, alias.canary)


@dataclass(slots=True)
class Times:
    """Durations, by bins of 9 % each: as many as there may be, in bounded memory."""

    bins: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        place = math.log2(max(seconds, LEAST_S) / LEAST_S) * PER_DOUBLING
        self.bins[min(int(place), NUM_BINS - 1)] += 1

    def __len__(self) -> int:
        return self.bins.total()

    def at(self, rank: int) -> float:
        """The `rank`-th shortest, from 1; seconds, the middle of its bin."""
        seen = 0
        for place in sorted(self.bins):
            seen += self.bins[place]
            if seen >= rank:
                break
        return LEAST_S * math.exp2((place + 0.5) / PER_DOUBLING)


@dataclass(slots=True)
class Side:
    """One version's requests.

    answered, errors  how many ended well, and by code for the version's own sake
    first   to the first text
    token   mean time of a token after that, one for each request that had several
    """

    answered: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    first: Times = field(default_factory=Times)
    token: Times = field(default_factory=Times)

    @property
    def failed(self) -> int:
        return self.errors.total()

    @property
    def requests(self) -> int:
        return self.answered + self.failed

    def fail(self, code: str) -> None:
        room = code in self.errors or len(self.errors) < MAX_CODES
        self.errors[code if room else OTHER] += 1

    @classmethod
    def total(cls, sides: Iterable[Self]) -> Self:
        whole = cls()
        for side in sides:
            whole.answered += side.answered
            whole.errors += side.errors
            whole.first.bins += side.first.bins
            whole.token.bins += side.token.bins
        return whole

    def to_wire(self) -> dict[str, Any]:
        return {
            "answered": self.answered,
            "errors": dict(self.errors),
            "first": dict(self.first.bins),
            "token": dict(self.token.bins),
        }

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            int(value["answered"]),
            Counter({str(code): int(n) for code, n in value["errors"].items()}),
            Times(Counter({int(place): int(n) for place, n in value["first"].items()})),
            Times(Counter({int(place): int(n) for place, n in value["token"].items()})),
        )


@dataclass(slots=True)
class Sides:
    canary: Side = field(default_factory=Side)
    production: Side = field(default_factory=Side)

    def __iter__(self) -> Iterator[Side]:
        return iter((self.canary, self.production))

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        known = list(parts)
        return cls(
            Side.total(p.canary for p in known),
            Side.total(p.production for p in known),
        )

    def to_wire(self) -> dict[str, Any]:
        return {"canary": self.canary.to_wire(), "production": self.production.to_wire()}

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Self:
        return cls(Side.from_wire(value["canary"]), Side.from_wire(value["production"]))


def in_words(seconds: float) -> str:
    """Three digits, in the unit that fits."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
