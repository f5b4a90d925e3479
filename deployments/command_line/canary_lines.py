"""What `loraplex adapters show` says of canaries: the one that runs, and those that ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from deployments.canary.trial_counts import in_words


def canary_lines(adapter: Mapping[str, Any]) -> list[str]:
    """adapter: as `GET /v1/adapters/TENANT/NAME` answers."""
    alias = adapter["aliases"].get("production")
    if alias is None:
        return []
    # A service of an earlier release says neither.
    ended = alias.get("ended", ())
    return [*_running(alias, adapter.get("trial")), *(_ended(e) for e in ended)]


def _running(alias: Mapping[str, Any], trial: Mapping[str, Any] | None) -> list[str]:
    if alias["canary"] is None:
        return []
    what = f"canary {alias['canary'][:12]}, {alias['weight']:.1%}"
    if not alias.get("gate", True):
        return [f"{what}; its gate is off."]
    if trial is None:
        return [f"{what}; its gate has seen no request yet."]
    sides = [_side(name, trial[name]) for name in ("canary", "production")]
    return [f"{what}; gate {trial['state']}: {trial['why']}.", *sides]


def _side(name: str, side: Mapping[str, Any]) -> str:
    quantiles = side.get("quantiles", ())
    # A service of an earlier release says none, and one number for each kind of time.
    kinds = (("first text", "first_s"), ("a token", "token_s")) if quantiles else ()
    times = [
        f"{what} p{100 * q:g} {in_words(seconds)}"
        for what, kind in kinds
        for q, seconds in zip(quantiles, side[kind], strict=True)
        if seconds is not None
    ]
    counts = f"{side['failed']} of {side['requests']} requests failed"
    return "  " + ", ".join([f"{name}: {counts}", *times])


def _ended(ended: Mapping[str, Any]) -> str:
    at = datetime.fromtimestamp(ended["at_s"], UTC)
    return f"{ended['digest'][:12]} was canary until {at:%Y-%m-%d %H:%M:%S}Z: {ended['why']}."
