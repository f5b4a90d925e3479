"""Whose turn it is, again and again, while the accounts change. Standard library only."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Key = Callable[[str], float]

NEAR_EQUALS = 8
MAX_LOOKS = 64


class Turns:
    """A round of serving tenants, the one of least `key` first.

    `next` hands out a tenant and drops it; `again` brings it back at its present key. A tenant
    whose next request can't go isn't brought back and holds up nobody.

    entries   (key, tenant), ascending, of all that may be candidates
    is_candidate  asked when a tenant's turn has come; `max_looks` of those that aren't end the
              round, so that finding nobody costs little (None: ask all)
    slack     keys no further apart count as equal
    """

    def __init__(
        self,
        entries: list[tuple[float, str]],
        key: Key,
        is_candidate: Callable[[str], bool],
        slack: float,
        max_looks: int | None = None,
    ) -> None:
        self._heap = entries
        self._key = key
        self._is_candidate = is_candidate
        self._slack = slack
        self._looks_left = len(entries) if max_looks is None else max_looks

    def next(self, score: Key | None = None) -> str | None:
        """The tenant of least key; with `score` (see `locality_score`), the best-scored one of
        those within `slack` of it, `NEAR_EQUALS` of them at most. None: no more."""
        first = self._pop()
        if first is None or score is None:
            return None if first is None else first[1]
        near = [first]
        limit = first[0] + self._slack
        while self._heap and len(near) < NEAR_EQUALS and self._heap[0][0] <= limit:
            entry = self._pop()
            if entry is None:
                break
            near.append(entry)
        if len(near) == 1:
            return first[1]
        best = max(near, key=lambda entry: score(entry[1]))
        for entry in near:
            if entry is not best:
                heapq.heappush(self._heap, entry)
        return best[1]

    def again(self, tenant: str) -> None:
        heapq.heappush(self._heap, (self._key(tenant), tenant))

    def _pop(self) -> tuple[float, str] | None:
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_candidate(entry[1]):
                return entry
            self._looks_left -= 1
            if self._looks_left < 0:
                self._heap = []
        return None


def locality_score(w_local: float, wait_s: float, num_tokens: int, in_batch: bool) -> float:
    """Seconds by which to choose between near-equals: a request of `num_tokens` whose adapter is in
    the batch already goes ahead of those that have waited up to w_local x tokens longer.

    wait_s: since the tenant's last turn, or since this request came where that was later. Waits
    grow alike, so who has waited longer by w_local x the longest prompt is never overtaken: that is
    how long locality delays anybody at most.
    """
    return wait_s + (w_local * num_tokens if in_batch else 0.0)
