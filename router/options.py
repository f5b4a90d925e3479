"""What the configuration says of routing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from router.placement import PlacementPolicy


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """`request_router_kwargs`. min_bound None: a quarter of a replica's rows, as it reports them.

    report_s  seconds between two log lines of the counters
    """

    load_factor: float = 1.25
    vnodes: int = 100
    min_bound: int | None = None
    report_s: float = 60.0

    def policy(self, rows: int | None) -> PlacementPolicy:
        """The policy for replicas of `rows` rows (None while nobody has said)."""
        min_bound = self.min_bound
        if min_bound is None:
            min_bound = max(1, math.ceil((rows or 1) / 4))
        return PlacementPolicy(self.load_factor, min_bound)
