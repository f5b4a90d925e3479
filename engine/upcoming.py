"""Each tenant's next request in a step: half read, or else waiting. Standard library only."""

from __future__ import annotations

from bisect import bisect_left, insort
from math import inf

from engine.queue import WaitingQueue
from engine.sequence import Sequence
from engine.step import Step
from engine.turns import Entries


class Upcoming:
    """As the step stands: half-read prompts are taken out of it as they are served, and once it is
    closed nobody else has a next one. `age` and `by_age`: see `turns.Aged`."""

    def __init__(self, step: Step, queue: WaitingQueue) -> None:
        self._step = step
        self._queue = queue

    def of(self, tenant: str) -> Sequence | None:
        mine = self._step.half_read.get(tenant)
        return mine[0] if mine else self._waiting(tenant)

    def age(self, tenant: str) -> float:
        sequence = self.of(tenant)
        return inf if sequence is None else sequence.order

    def by_age(self) -> Entries:
        entries: Entries = [] if self._step.is_closed else self._queue.by_age()
        for tenant, mine in self._step.half_read.items():
            if not mine:
                continue
            waiting = self._waiting(tenant)
            if waiting is not None:
                del entries[bisect_left(entries, (waiting.order, tenant))]
            insort(entries, (mine[0].order, tenant))
        return entries

    def _waiting(self, tenant: str) -> Sequence | None:
        return None if self._step.is_closed else self._queue.head(tenant)
