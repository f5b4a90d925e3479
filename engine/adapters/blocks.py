"""The blocks of versions in host memory: which may go, and which of them first.

By GreedyDual-Size: a block is worth the seconds of its load over its bytes, counted from a clock
that rises to the worth of what goes, so that what isn't used ages. Standard library only.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from engine.adapters.host import block_bytes
from engine.adapters.version import State, Tier, Version


class ByTenant:
    """Versions by the tenant whose they are."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Version]] = {}

    def __iter__(self) -> Iterator[Version]:
        return (version for own in self._of.values() for version in own.values())

    def add(self, version: Version) -> None:
        self._of.setdefault(version.ref.tenant, {})[version.key] = version

    def remove(self, version: Version) -> None:
        """Raises KeyError for one that isn't among them."""
        own = self._of[version.ref.tenant]
        del own[version.key]
        if not own:
            del self._of[version.ref.tenant]

    def of(self, tenant: str) -> Collection[Version]:
        return self._of.get(tenant, {}).values()


class Blocks:
    """Of the versions whose load is done. `refresh` keeps apart those that may go, so that room is
    found without looking at thousands of others: O(log n), amortised."""

    def __init__(self) -> None:
        self._held: dict[str, Version] = {}
        self._own = ByTenant()
        self._own_droppable = ByTenant()
        self._worth: dict[str, float] = {}
        self._droppable: dict[str, Version] = {}
        self._heap: list[tuple[float, str]] = []
        self._clock = 0.0
        self.num_droppable_bytes = 0
        """Of the pool, as much as would come free."""

    def __iter__(self) -> Iterator[Version]:
        return iter(self._held.values())

    def of(self, tenant: str) -> Collection[Version]:
        """Of its versions."""
        return self._own.of(tenant)

    def used(self, version: Version) -> None:
        """It is new, or was used: it is worth its cost again."""
        self._held[version.key] = version
        self._own.add(version)
        self._worth[version.key] = self._clock + version.load_s / version.num_bytes
        self.refresh(version)
        if version.key in self._droppable:
            self._push(version.key)

    def refresh(self, version: Version) -> None:
        """Call after what `is_droppable` looks at has changed."""
        key = version.key
        may_go = key in self._held and is_droppable(version)
        if may_go == (key in self._droppable):
            return
        if may_go:
            self._droppable[key] = version
            self._own_droppable.add(version)
            self.num_droppable_bytes += block_bytes(version.num_bytes)
            self._push(key)
        else:
            del self._droppable[key]
            self._own_droppable.remove(version)
            self.num_droppable_bytes -= block_bytes(version.num_bytes)

    def remove(self, version: Version) -> None:
        """Its room is given back. Raises KeyError for a version that has none."""
        del self._held[version.key], self._worth[version.key]
        self._own.remove(version)
        self.refresh(version)

    def cheapest(self, first: Collection[str]) -> Version | None:
        """What goes next, those of the tenants `first` ahead of all others; None: nothing may."""
        if first and (version := self.cheapest_of(first)) is not None:
            return version
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._droppable[self._heap[0][1]] if self._heap else None

    def cheapest_of(self, tenants: Collection[str]) -> Version | None:
        """Likewise, of these tenants alone: O(n) in what may go of theirs."""
        own = (v for tenant in tenants for v in self._own_droppable.of(tenant))
        return min(own, key=lambda v: self._worth[v.key], default=None)

    def age_to(self, version: Version) -> None:
        """It goes to make room: all others are worth that much less."""
        self._clock = max(self._clock, self._worth[version.key])

    def check(self) -> None:
        assert set(self._held) == set(self._worth)
        assert all(v.host_offset is not None for v in self)
        assert {v.key for v in self._own} == set(self._held)
        assert {v.key for v in self._own_droppable} == set(self._droppable)
        droppable = {key: v for key, v in self._held.items() if is_droppable(v)}
        assert self._droppable == droppable, set(self._droppable) ^ set(droppable)
        num_bytes = sum(block_bytes(v.num_bytes) for v in droppable.values())
        assert self.num_droppable_bytes == num_bytes
        assert {key for worth, key in filter(self._is_current, self._heap)} == set(droppable)

    def _push(self, key: str) -> None:
        heapq.heappush(self._heap, (self._worth[key], key))
        if len(self._heap) > 2 * len(self._held) + 64:
            self._heap = [item for item in set(self._heap) if self._is_current(item)]
            heapq.heapify(self._heap)

    def _is_current(self, item: tuple[float, str]) -> bool:
        worth, key = item
        return key in self._droppable and self._worth[key] == worth


def is_droppable(version: Version) -> bool:
    """On the device anyway, or wanted by nobody; and not pinned here."""
    if version.state is State.DEVICE:
        return version.pin is not Tier.HOST
    is_wanted = version.is_asked_for or version.pin is not Tier.COLD
    return version.state is State.HOST and not is_wanted
