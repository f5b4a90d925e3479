"""Seeded random numbers and arrival times.

Draws come from numpy's RandomState, whose streams are frozen for good, and every concern of a
workload has a stream of its own: other lengths leave the times as they were.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
from numpy.random import RandomState


def stream(seed: int, *labels: object) -> RandomState:
    """The stream of one concern, named by `labels`."""
    text = "/".join(str(part) for part in (seed, *labels))
    return RandomState(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big"))


def gamma_times(random: RandomState, rate: float, cv: float, count: int) -> list[float]:
    """`count` times whose gaps are Gamma(shape 1/cv², scale cv²/rate): mean 1/rate, coefficient of
    variation cv. cv 1 is a Poisson process."""
    gaps = random.gamma(1 / cv**2, cv**2 / rate, count)
    return [whole(t) for t in np.cumsum(gaps)]


def poisson_times(random: RandomState, rate: float, duration_s: float) -> list[float]:
    """Of a Poisson process, below `duration_s`."""
    return varying_times(random, lambda t: rate, rate, duration_s)


def varying_times(
    random: RandomState, rate_at: Callable[[float], float], peak: float, duration_s: float
) -> list[float]:
    """Of a Poisson process whose rate at t is `rate_at(t)`, never above `peak`: one at `peak`,
    thinned (Lewis and Shedler)."""
    times: list[float] = []
    t = 0.0
    while peak > 0:
        t += random.exponential(1 / peak)
        if t >= duration_s:
            break
        if random.random_sample() * peak < rate_at(t):
            times.append(whole(t))
    return times


def steady_times(rate: float, duration_s: float, offset_s: float = 0.0) -> list[float]:
    """int(rate * duration_s) of them, 1/rate apart; the first at `offset_s` + 1/rate. What would
    fall beyond the end is left out."""
    times = (whole(offset_s + (i + 1) / rate) for i in range(int(rate * duration_s)))
    return [t for t in times if t < duration_s]


def ramp_times(start: float, end: float, duration_s: float) -> list[float]:
    """Evenly spaced by the rate of the moment, which goes from `start` to `end`."""
    times: list[float] = []
    t = 0.0
    for _ in range(int((start + end) / 2 * duration_s)):
        t += 1 / (start + (end - start) * t / duration_s)
        if t < duration_s:
            times.append(whole(t))
    return times


def whole(seconds: float) -> float:
    """To the microsecond: the last bit of a logarithm may differ between machines."""
    return math.floor(seconds * 1e6 + 0.5) / 1e6
