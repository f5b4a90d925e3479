"""Quantiles, distributions and the fairness index of a list of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

MAX_POINTS = 300


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of `count` values, in their unit; linear between neighbours."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """None of no values."""
        known = np.fromiter(values, dtype=np.float64)
        if not known.size:
            return None
        p50, p90, p95, p99 = (float(q) for q in np.quantile(known, (0.5, 0.9, 0.95, 0.99)))
        return cls(known.size, float(known.mean()), p50, p90, p95, p99, float(known.max()))


def jain(values: Sequence[float]) -> float | None:
    """(Σx)² / (n Σx²): 1 where all are alike, 1/n where one has all. None where nobody has
    anything."""
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def cdf(values: Iterable[float]) -> tuple[list[float], list[float]]:
    """(values, part at most as large), at most MAX_POINTS of them, closer together at the tail."""
    known = np.sort(np.fromiter(values, dtype=np.float64))
    if known.size <= MAX_POINTS:
        return known.tolist(), [(i + 1) / known.size for i in range(known.size)]
    tail = 1 - np.geomspace(0.1, 1 / known.size, MAX_POINTS // 3)
    parts = np.concatenate([np.linspace(0, 0.9, 2 * MAX_POINTS // 3, endpoint=False), tail, [1.0]])
    return [float(v) for v in np.quantile(known, parts)], [float(p) for p in parts]
