"""Whose turn it is, again and again, while the accounts change. Standard library only."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Protocol

Key = Callable[[str], float]
Entries = list[tuple[float, str]]
"""(key, tenant), ascending."""

NEAR_EQUALS = 8
MAX_LOOKS = 64


class Turns:
    """A round of serving tenants, the one of least `key` first.

    `next` hands out a tenant and drops it; `again` brings it back at its present key. A tenant
    whose next request can't go isn't brought back and holds up nobody.

    entries   of all that may be candidates, one each; used up. are_bounds: their keys may have
              grown since, and are put right when their turn has come
    is_candidate  asked when a tenant's turn has come; `max_looks` of those that aren't end the
              round, so that finding nobody costs little (None: ask all)
    slack     keys no further apart count as equal
    """

    def __init__(
        self,
        entries: Entries,
        key: Key,
        is_candidate: Callable[[str], bool],
        slack: float,
        max_looks: int | None = None,
        are_bounds: bool = False,
    ) -> None:
        self._heap = entries
        self._key = key
        self._is_candidate = is_candidate
        self._slack = slack
        self._are_bounds = are_bounds
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
            tenant = entry[1]
            if self._is_candidate(tenant):
                if not self._are_bounds or (key := self._key(tenant)) <= entry[0]:
                    return entry
                heapq.heappush(self._heap, (key, tenant))
                continue
            self._looks_left -= 1
            if self._looks_left < 0:
                self._heap = []
        return None


class Aged(Protocol):
    """What tenants wait for, by age."""

    def age(self, tenant: str) -> float:
        """A number of its next request: the less, the older; inf where it has none."""

    def by_age(self) -> Entries:
        """Of all tenants that have one, or of some that had; the caller's own. No tenant's entry is
        above its `age`."""


class Ages:
    """Tenants by a number each, in order at all times: asking for them in order costs no look at
    each of them."""

    def __init__(self) -> None:
        self._entries: Entries = []
        self._of: dict[str, float] = {}

    def put(self, tenant: str, age: float | None) -> None:
        """Its number from now on; None: it has none."""
        before = self._of.get(tenant)
        if age == before:
            return
        if before is not None:
            del self._entries[bisect_left(self._entries, (before, tenant))]
        if age is None:
            del self._of[tenant]
        else:
            self._of[tenant] = age
            insort(self._entries, (age, tenant))

    def ascending(self) -> Entries:
        """A copy."""
        return self._entries.copy()

    def check(self, ages: dict[str, float]) -> None:
        assert self._of == ages
        assert self._entries == sorted((age, tenant) for tenant, age in ages.items())


def locality_score(w_local: float, wait_s: float, num_tokens: int, in_batch: bool) -> float:
    """Seconds by which to choose between near-equals: a request of `num_tokens` whose adapter is in
    the batch already goes ahead of those that have waited up to w_local x tokens longer.

    wait_s: since the tenant's last turn, or since this request came where that was later. Waits
    grow alike, so no tenant is overtaken by another that has waited less by w_local x the longest
    prompt.
    """
    return wait_s + (w_local * num_tokens if in_batch else 0.0)
