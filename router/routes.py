"""Where a call goes, and why, noted in the call itself for whoever traces it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router.placement import Placement

ROUTE = "route"
"""A call to `generate` has it where it wants to know."""


def note_route(args: Sequence[Any], placement: Placement, now: float) -> None:
    """Of a call with these arguments; the last choice counts. now: seconds, monotonic."""
    call = args[0] if len(args) == 1 else None
    route = call.get(ROUTE) if isinstance(call, dict) else None
    if route is not None:
        route.update(
            at_s=now,
            replica=placement.replica,
            reason=str(placement.reason),
            bound=placement.bound,
        )
