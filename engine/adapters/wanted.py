"""Versions whose load has not been sent, in queues by tenant: whose turn it is, and which of theirs
has been wanted for longest. Standard library only.

Entries aren't taken out when a version goes or changes; they are passed over when they come to a
queue's head, and cleared away when most of them are such. So starting loads costs by those that
start, not by those that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heappush
from math import inf

from engine.adapters.version import Version
from engine.turns import Ages, Entries

Heap = list[tuple[int, str]]
"""(order, key), the least first."""


class Queue:
    """Of one kind of versions: see `Wanted`."""

    def __init__(self, wanted: Wanted, asked: bool, near: bool) -> None:
        self._wanted = wanted
        self._asked = asked
        self._near = near
        self.heaps: dict[str, Heap] = {}
        self.held: dict[str, Heap] = {}
        """Of tenants that are passed over at present."""
        self._ages = Ages()
        """Of each tenant's first entry, which may be one to pass over."""

    @property
    def tenants(self) -> Collection[str]:
        """Among them some whose every entry is to be passed over; not those that are held."""
        return self.heaps.keys()

    def head(self, tenant: str) -> Version | None:
        """The tenant's version that has been wanted for longest."""
        heap = self.heaps.get(tenant, [])
        while heap:
            version = self._wanted.of(*heap[0], tenant)
            if version is not None and self._has(version):
                return version
            heappop(heap)
            self._ages.put(tenant, heap[0][0] if heap else None)
            if version is not None:
                self._wanted.push(version)  # it is of another kind by now
        self.heaps.pop(tenant, None)
        return None

    def age(self, tenant: str) -> float:
        """The order of its head, the less, the longer it waits; inf where it has none."""
        version = self.head(tenant)
        return inf if version is None else version.order

    def by_age(self) -> Entries:
        """See `turns.Aged`."""
        return self._ages.ascending()

    def push(self, tenant: str, order: int, key: str) -> None:
        heap = self.heaps.setdefault(tenant, [])
        heappush(heap, (order, key))
        self._ages.put(tenant, heap[0][0])

    def hold(self, tenant: str) -> None:
        heap = self.heaps.pop(tenant, None)
        if heap is not None:
            self.held[tenant] = heap
            self._ages.put(tenant, None)

    def release(self, tenant: str) -> None:
        heap = self.held.pop(tenant, None)
        if heap is not None:
            self.heaps[tenant] = heap
            self._ages.put(tenant, heap[0][0])

    def check(self) -> None:
        assert not self.heaps.keys() & self.held
        self._ages.check({tenant: heap[0][0] for tenant, heap in self.heaps.items()})

    def _has(self, version: Version) -> bool:
        is_kind = self._asked == bool(version.num_waiting)
        return is_kind and (not self._near or self._wanted.is_near(version.key))


class Wanted:
    """is_near: whether a version of this key has been here before. A version that turns near while
    it is wanted is found as one that isn't."""

    def __init__(self, is_near: Callable[[str], bool]) -> None:
        self.is_near = is_near
        self._versions: dict[str, Version] = {}
        self._clear()

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[Version]:
        return iter(self._versions.values())

    def add(self, version: Version) -> None:
        """Call again once its order, its tenant or that requests wait for it has changed."""
        self._versions[version.key] = version
        self.release(version.tenant)
        if self._num_added > 2 * len(self._versions) + 64:
            self._clear()
            for each in self._versions.values():
                self.push(each)
        else:
            self._num_added += 1
            self.push(version)

    def remove(self, version: Version) -> None:
        del self._versions[version.key]

    def hold(self, tenant: str) -> None:
        """It has no turn in any queue until `release`, or until it wants one more."""
        for queue in self._queues.values():
            queue.hold(tenant)

    def release(self, tenant: str) -> None:
        """Nothing happens to a tenant that isn't held."""
        for queue in self._queues.values():
            queue.release(tenant)

    @property
    def held(self) -> Collection[str]:
        """Tenants with entries that are held."""
        return {tenant for queue in self._queues.values() for tenant in queue.held}

    def queue(self, *, asked: bool, near: bool) -> Queue:
        """asked: of those that requests wait for, or the others. near: only of near ones."""
        return self._queues[asked, near]

    def of(self, order: int, key: str, tenant: str) -> Version | None:
        """The version that an entry is of; None where it has gone, or has a newer one."""
        version = self._versions.get(key)
        is_newest = version is not None and (version.order, version.tenant) == (order, tenant)
        return version if is_newest else None

    def push(self, version: Version) -> None:
        """One more entry for it, with its kind."""
        asked = bool(version.num_waiting)
        for near in (False, True) if self.is_near(version.key) else (False,):
            self._queues[asked, near].push(version.tenant, version.order, version.key)

    def check(self) -> None:
        """Every version is found by some entry."""
        entries = {
            (tenant, *entry)
            for (_, near), queue in self._queues.items()
            for tenant, heap in (*queue.heaps.items(), *queue.held.items())
            for entry in heap
            if not near
        }
        for queue in self._queues.values():
            queue.check()
        assert all((v.tenant, v.order, v.key) in entries for v in self)

    def _clear(self) -> None:
        kinds = [(asked, near) for asked in (False, True) for near in (False, True)]
        self._queues = {kind: Queue(self, *kind) for kind in kinds}
        self._num_added = 0
