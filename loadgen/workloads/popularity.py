"""Which adapter a request asks for, as the literature has it, and how skewed that really is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

PUNICA = ("distinct", "uniform", "skewed", "identical")
PUNICA_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Shares:
    """What a skew parameter means: parts of all requests that go to the most popular adapter, and
    to the ten most popular; and how many adapters are asked for at all."""

    top_1: float
    top_10: float
    num_adapters: int


def shares(counts: Iterable[int]) -> Shares:
    """counts: requests by adapter."""
    ordered = sorted(counts, reverse=True)
    total = sum(ordered) or 1
    asked = sum(count > 0 for count in ordered)
    return Shares(sum(ordered[:1]) / total, sum(ordered[:10]) / total, asked)


def power_indices(random: RandomState, alpha: float, num_adapters: int, count: int) -> list[int]:
    """S-LoRA's: int(power(alpha) * n), so that P(index < k) = (k/n)^alpha. alpha 1 is uniform;
    below 1 low indices are the popular ones."""
    drawn = random.power(alpha, count) * num_adapters
    return [min(int(i), num_adapters - 1) for i in drawn]


def punica_counts(kind: str, num_requests: int) -> list[int]:
    """Requests by adapter, of Punica's four popularities.

    distinct   an adapter a request
    uniform    ceil(sqrt(requests)) adapters, alike
    skewed     geometric: each has PUNICA_RATIO times the requests of the next less popular one
    identical  one adapter
    """
    match kind:
        case "distinct":
            return [1] * num_requests
        case "identical":
            return [num_requests]
        case "uniform":
            n = math.ceil(math.sqrt(num_requests))
            return [num_requests // n + (i < num_requests % n) for i in range(n)]
        case "skewed":
            return _geometric_counts(num_requests)
    raise ValueError(f"{kind!r} is none of {', '.join(PUNICA)}.")


def _geometric_counts(num_requests: int) -> list[int]:
    """From the least popular, with one request, upwards; the most popular has what is left."""
    counts: list[int] = []
    size, left = 1.0, num_requests
    while left > int(size):
        counts.append(int(size))
        left -= int(size)
        size *= PUNICA_RATIO
    return sorted([*counts, left], reverse=True)


def zipf_weights(num_adapters: int, exponent: float) -> list[float]:
    """Of the i-th, 1 / i^exponent, normalised."""
    raw = [1 / i**exponent for i in range(1, num_adapters + 1)]
    total = math.fsum(raw)
    return [w / total for w in raw]


def choose(random: RandomState, weights: Sequence[float], count: int) -> list[int]:
    """`count` indices drawn by `weights`."""
    edges = np.cumsum(weights)
    drawn = np.searchsorted(edges, random.random_sample(count) * edges[-1], side="right")
    return [min(int(i), len(weights) - 1) for i in drawn]
