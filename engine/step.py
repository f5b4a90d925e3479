"""One step while it is being decided. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.sequence import Sequence


@dataclass(slots=True)
class Step:
    """plan_id       of the plan to be made; the one before it was the last launched
    bar           newcomers come from tenants whose account is below it alone (None: from all)
    half_read     sequences whose prompt is half read, by tenant, the oldest first; used up
    grants        tokens of each sequence in this step
    newcomers     sequences that get their first row in it
    num_preemptions_left  of this step
    take_back     takes everything from a sequence and puts it back at the head of its queue, now
    is_full       rows or pages have run short: newcomers come in at others' expense only
    num_reserved  pages that are kept for the first newcomer that found too few
    is_closed     no newcomer comes in any more
    """

    plan_id: int
    now: float
    num_preemptions_left: int
    take_back: Callable[[Sequence, float], None]
    bar: float | None = None
    half_read: dict[str, list[Sequence]] = field(default_factory=dict)
    grants: dict[Sequence, int] = field(default_factory=dict)
    newcomers: list[Sequence] = field(default_factory=list)
    is_full: bool = False
    num_reserved: int = 0
    is_closed: bool = False

    @property
    def last_plan(self) -> int:
        return self.plan_id - 1

    def preempt(self, victim: Sequence | None) -> bool:
        """Takes a victim's row and pages, out of this step too. False where there is none, or where
        enough have been preempted in this step."""
        if victim is None or not self.num_preemptions_left:
            return False
        self.num_preemptions_left -= 1
        self.is_full = True
        self.grants.pop(victim, None)
        self.take_back(victim, self.now)
        return True
