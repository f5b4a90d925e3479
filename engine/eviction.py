"""What to evict next: GreedyDual-Size over things of different kinds. Standard library only."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Entry:
    kind: str
    priority: float
    stamp: int
    held: bool


class GreedyDualSize(Generic[K]):
    """Each key has H = clock + seconds to bring it back / pages, set when it is used. The least H
    goes first, of equals the least recently used, and the clock rises to the H of what went: so
    what isn't used ages. With equal costs and sizes that is LRU.

    A kind is a label ("adapter", "prefix") by which `pop` can be narrowed; the clock and the order
    are common to all. Every operation is O(log n), amortised.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self._entries: dict[K, _Entry] = {}
        self._heaps: dict[str, list[tuple[float, int, K]]] = {}
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def touch(
        self, key: K, cost_s: float, num_pages: int, kind: str, *, held: bool = False
    ) -> None:
        """The key is used now: set its H. A new key is evictable unless `held`; a held one stays
        so."""
        entry = self._entries.get(key)
        held = held or (entry is not None and entry.held)
        self._stamp += 1
        priority = self.clock + cost_s / num_pages
        entry = self._entries[key] = _Entry(kind, priority, self._stamp, held)
        if not held:
            self._push(key, entry)

    def hold(self, key: K) -> None:
        """Not evictable until `let_go`. It keeps its H."""
        self._entries[key].held = True

    def let_go(self, key: K) -> None:
        """Evictable again, with the H of its last use. Nothing happens to one that isn't held."""
        entry = self._entries[key]
        if entry.held:
            entry.held = False
            self._push(key, entry)

    def remove(self, key: K) -> None:
        """Forget it. Raises KeyError for an unknown key."""
        del self._entries[key]

    def pop(
        self, kinds: Iterable[str] | None = None, allow: Callable[[K], bool] | None = None
    ) -> K | None:
        """Take out the evictable key of least H, among those of `kinds` that `allow` admits.

        None where there is none. Keys that `allow` turns down cost O(log n) each and stay.
        """
        heaps = [self._heaps.get(kind, []) for kind in (self._heaps if kinds is None else kinds)]
        passed: list[tuple[float, int, K]] = []
        chosen = None
        while chosen is None:
            for heap in heaps:
                self._drop_stale(heap)
            least = min((heap for heap in heaps if heap), key=_head, default=None)
            if least is None:
                break
            item = heapq.heappop(least)
            if allow is None or allow(item[2]):
                chosen = item
            else:
                passed.append(item)
        for item in passed:
            heapq.heappush(self._heaps[self._entries[item[2]].kind], item)
        if chosen is None:
            return None
        self.clock = max(self.clock, chosen[0])
        del self._entries[chosen[2]]
        return chosen[2]

    def check(self) -> None:
        """Raise AssertionError where an evictable key can't be found, or is found twice."""
        current = [
            item
            for kind, heap in self._heaps.items()
            for item in heap
            if self._is_current(item) and self._entries[item[2]].kind == kind
        ]
        evictable = {key for key, entry in self._entries.items() if not entry.held}
        assert {key for _, _, key in current} == evictable
        assert len(set(current)) == len(evictable)

    def _push(self, key: K, entry: _Entry) -> None:
        heap = self._heaps.setdefault(entry.kind, [])
        heapq.heappush(heap, (entry.priority, entry.stamp, key))
        if len(heap) > 2 * len(self._entries) + 64:
            heap[:] = {item for item in heap if self._is_current(item)}
            heapq.heapify(heap)

    def _drop_stale(self, heap: list[tuple[float, int, K]]) -> None:
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)

    def _is_current(self, item: tuple[float, int, K]) -> bool:
        entry = self._entries.get(item[2])
        return entry is not None and not entry.held and entry.stamp == item[1]


def _head(heap: list[tuple[float, int, K]]) -> tuple[float, int]:
    return heap[0][:2]
