"""A bounded histogram: an array of counts and a sum. Standard library only.

What counts in the core costs one search in a dozen numbers and one addition; whoever exports it
gets the array as it stands.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""For what requests wait for."""
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0)
"""For one step of the device, or one token."""
ADAPTERS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0)
"""For different adapters in one step."""


@dataclass(frozen=True, slots=True)
class Counts:
    """counts[i]: values above bounds[i - 1], up to and including bounds[i]; the last, of those
    above all bounds. total: their sum."""

    counts: tuple[int, ...]
    total: float

    @property
    def num(self) -> int:
        return sum(self.counts)


class Histogram:
    """bounds: ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def read(self) -> Counts:
        """As it stands: values since it was made."""
        return Counts(tuple(self.counts), self.total)
