"""Where a router has sent requests, and why: totals since its start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from router.placement import Reason


@dataclass(slots=True)
class RouterCounters:
    """Totals since the router's start. `waited` requests found every replica full at first; `hints`
    were sent to replicas that an adapter's requests will overflow to."""

    placed: Counter[Reason] = field(default_factory=Counter)
    waited: int = 0
    hints: int = 0
    num_picks: int = 0
    pick_s: float = 0.0

    def __str__(self) -> str:
        reasons = ", ".join(
            f"{reason} {self.placed[reason]}" for reason in Reason if reason in self.placed
        )
        mean_us = 1e6 * self.pick_s / max(1, self.num_picks)
        return (
            f"placed: {reasons or 'none'}; waited {self.waited}; hints {self.hints};"
            f" {mean_us:.1f} us a pick"
        )
