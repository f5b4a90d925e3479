"""Whether a canary is worse than production. Pure: counts in, verdict out.

A gate looks again and again while counts grow, so what it asks for is strong: with `confidence`,
that the canary is worse by more than the margin, not merely worse. Errors by Newcombe's interval
for the difference of two shares, made of Wilson's (R. G. Newcombe, Statistics in Medicine 17, 1998,
method 10); times by the order statistics that bound a quantile, whatever the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Annotated, Any

from pydantic import Field

from deployments.canary.trial_counts import Side, Sides, Times, in_words
from deployments.config_sections import Count, Seconds, Section


class GateSection(Section):
    """When a canary is rolled back by itself.

    enabled           for every canary that doesn't say otherwise
    min_requests      of each side, before anything is decided
    error_margin      share of requests that the canary may fail beyond production's share
    latency_quantiles that are compared, of each kind of time; the middle too, since steps are
                      shared: beside a slow canary production has slow requests as well
    first_margin, token_margin  how many times production's the canary's may be: until the first
                      text, and a token after that
    confidence        with which it must be worse
    warm_up_s         after a canary's first request at an ingress times aren't counted: the version
                      is loaded first
    report_s          how often ingresses tell what they count
    """

    enabled: bool = True
    min_requests: Count = 200
    error_margin: Annotated[float, Field(ge=0, lt=1)] = 0.02
    latency_quantiles: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)
    ] = (0.5, 0.9)
    first_margin: Annotated[float, Field(ge=1)] = 1.5
    token_margin: Annotated[float, Field(ge=1)] = 1.5
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.999
    warm_up_s: Annotated[float, Field(ge=0)] = 10
    report_s: Seconds = 1


class State(StrEnum):
    WAITING = "waiting"
    HOLDING = "holding"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Verdict:
    """waiting: too few requests; holding: not worse, as far as one can say; worse: by more than a
    margin. why: a sentence for people."""

    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of time that is compared."""

    name: str
    margin: float
    of: Callable[[Side], Times]


def decide(sides: Sides, gate: GateSection) -> Verdict:
    z = NormalDist().inv_cdf(gate.confidence)
    few = min(side.requests for side in sides)
    if few < gate.min_requests:
        counts = f"the canary {sides.canary.requests}, production {sides.production.requests}"
        why = f"of at least {gate.min_requests} requests a side, {counts}"
        return Verdict(State.WAITING, why)
    reasons = (_failing(sides, gate, z), *(_slower(sides, gate, z, kind) for kind in kinds(gate)))
    why = next((reason for reason in reasons if reason), "")
    if why:
        return Verdict(State.WORSE, why)
    compared = f"{sides.canary.requests} requests with production's {sides.production.requests}"
    return Verdict(State.HOLDING, f"no worse by more than a margin, comparing {compared}")


def kinds(gate: GateSection) -> tuple[Kind, Kind]:
    return (
        Kind("time to the first text", gate.first_margin, lambda side: side.first),
        Kind("time of a token", gate.token_margin, lambda side: side.token),
    )


def excess(failed: int, num: int, failed_before: int, num_before: int, z: float) -> float:
    """The least by which the first share of failures exceeds the second, one-sided at `z`."""
    low, _ = wilson(failed, num, z)
    _, high = wilson(failed_before, num_before, z)
    share, before = failed / num, failed_before / num_before
    return share - before - math.hypot(share - low, high - before)


def wilson(failed: int, num: int, z: float) -> tuple[float, float]:
    """Bounds of a share, each one-sided at `z`."""
    share, square = failed / num, z * z
    middle = (share + square / (2 * num)) / (1 + square / num)
    half = z * math.sqrt(share * (1 - share) / num + square / (4 * num * num)) / (1 + square / num)
    return max(0.0, middle - half), min(1.0, middle + half)


def quantile_bounds(times: Times, q: float, z: float) -> tuple[float, float]:
    """Bounds of a quantile, each one-sided at `z`; seconds. The highest is infinite where too few
    were seen to bound it."""
    num = len(times)
    half = z * math.sqrt(num * q * (1 - q))
    low, high = math.floor(num * q - half), math.ceil(num * q + half) + 1
    return (times.at(low) if low >= 1 else 0.0), (times.at(high) if high <= num else math.inf)


def view(sides: Sides, gate: GateSection) -> dict[str, Any]:
    """The numbers that a verdict is made of, for people."""
    names = ("canary", "production")
    return {name: _side_view(side, gate) for name, side in zip(names, sides, strict=True)}


def _side_view(side: Side, gate: GateSection) -> dict[str, Any]:
    first, token = (
        [_quantile(kind.of(side), q) for q in gate.latency_quantiles] for kind in kinds(gate)
    )
    return {
        "requests": side.requests,
        "failed": side.failed,
        "errors": dict(side.errors),
        "first_s": first,
        "token_s": token,
        "quantiles": list(gate.latency_quantiles),
    }


def _failing(sides: Sides, gate: GateSection, z: float) -> str | None:
    canary, before = sides
    least = excess(canary.failed, canary.requests, before.failed, before.requests, z)
    if least <= gate.error_margin:
        return None
    kinds = ", ".join(f"{code} {num}" for code, num in canary.errors.most_common(3))
    return (
        f"{canary.failed} of its {canary.requests} requests failed ({kinds}), of production's"
        f" {before.requests} {before.failed}: at least {least:.1%} more; {gate.error_margin:.1%}"
        " are allowed"
    )


def _slower(sides: Sides, gate: GateSection, z: float, kind: Kind) -> str | None:
    canary, before = (kind.of(side) for side in sides)
    if min(len(canary), len(before)) < gate.min_requests:
        return None
    for q in gate.latency_quantiles:
        least, most = quantile_bounds(canary, q, z)[0], quantile_bounds(before, q, z)[1]
        if least > kind.margin * most:
            own, others = (_quantile(times, q) or 0.0 for times in (canary, before))
            return (
                f"its {kind.name} at p{100 * q:g} is {in_words(own)}, production's"
                f" {in_words(others)}: at least {least / most:.1f} times as long;"
                f" {kind.margin:g} times are allowed"
            )
    return None


def _quantile(times: Times, q: float) -> float | None:
    return times.at(math.ceil(q * len(times))) if len(times) else None
