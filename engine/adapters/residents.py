"""The adapters on the device: by index, idle or not, and what the device's table must be told.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from engine.adapters.quotas import Quotas
from engine.adapters.version import State, Version
from engine.arena import Arena
from engine.eviction import GreedyDualSize
from engine.plan import NO_ADAPTER, TableEntry

ADAPTER_KIND = "adapter"


class Residents:
    """idle: shared with the prefix tree. Exactly the idle adapters (`Version.is_idle`) are in it,
    each worth the seconds to bring it back. Whoever pops one there calls `evict`.
    quotas: of tenants on the device; what is evicted counts no longer.
    on_evicted: called with a version that has just left the device."""

    def __init__(
        self,
        arena: Arena,
        idle: GreedyDualSize[Hashable],
        quotas: Quotas,
        on_evicted: Callable[[Version], None],
    ) -> None:
        self._arena = arena
        self._idle = idle
        self._quotas = quotas
        self._on_evicted = on_evicted
        self._by_index: dict[int, Version] = {}
        self._stale: set[int] = set()
        self._changes: dict[str, bool] = {}
        self.num_idle_pages = 0
        self._evicted: list[str] = []

    def __iter__(self) -> Iterator[Version]:
        return iter(self._by_index.values())

    def add(self, version: Version, now: float) -> None:
        """Its upload is complete: plans may use it from now on."""
        version.state = State.DEVICE
        version.resident_since_s = now
        self._by_index[version.adapter] = version
        self._stale.add(version.adapter)
        self._changes[version.key] = True
        self.refresh(version)

    def evict(self, version: Version, plan_id: int) -> None:
        """Takes it off the device. plan_id: the last launched plan, which may still use it."""
        assert version.state is State.DEVICE and not version.num_leases
        if version in self._idle:
            self._idle.remove(version)
        if version.is_idle:
            self.num_idle_pages -= version.num_pages
        self._arena.release(version.adapter, plan_id)
        self._quotas.add(version.ref.tenant, -version.num_bytes)
        del self._by_index[version.adapter]
        self._stale.add(version.adapter)
        self._changes[version.key] = False
        version.state = State.HOST
        version.adapter = NO_ADAPTER
        version.closed_since_s = None
        self._evicted.append(version.key)
        self._on_evicted(version)

    def take_evicted(self) -> tuple[str, ...]:
        """The versions that have left the device since the last call."""
        evicted = tuple(self._evicted)
        self._evicted.clear()
        return evicted

    def refresh(self, version: Version) -> None:
        """Call after its leases or its waiting requests have changed: idle or not?"""
        if version.state is not State.DEVICE:
            return
        is_listed = version in self._idle
        if version.is_idle and not is_listed:
            self._idle.touch(version, version.cost_s, version.num_pages, ADAPTER_KIND)
            self.num_idle_pages += version.num_pages
        elif is_listed and not version.is_idle:
            self._idle.remove(version)
            self.num_idle_pages -= version.num_pages

    def touch(self, version: Version) -> None:
        """It will be used soon: an idle one is worth its cost again."""
        if version.is_idle:
            self._idle.touch(version, version.cost_s, version.num_pages, ADAPTER_KIND)

    def close(self, version: Version, now: float) -> None:
        """Admit no request to it from now on, so that it drains."""
        version.closed_since_s = now
        self._changes[version.key] = False

    def reopen(self) -> None:
        """Those that were to yield needn't any more."""
        for version in self._by_index.values():
            if version.closed_since_s is not None:
                version.closed_since_s = None
                self._changes[version.key] = True

    def take_changes(self) -> dict[str, bool]:
        """Versions whose admission has opened (True) or closed since the last call."""
        changes, self._changes = self._changes, {}
        return changes

    def take_entries(self, moved: Iterable[int]) -> tuple[TableEntry, ...]:
        """What the next plan must tell the device's table. `moved`: indices whose run it moves."""
        indices = sorted(self._stale.union(moved))
        self._stale.clear()
        return tuple(self._entry(index) for index in indices)

    def _entry(self, index: int) -> TableEntry:
        version = self._by_index.get(index)
        if version is None:
            return TableEntry(index, 0, None)
        return TableEntry(index, self._arena.start_page(index), version.layout)

    def check(self) -> None:
        for index, version in self._by_index.items():
            assert version.adapter == index and version.state is State.DEVICE
            assert (version in self._idle) == version.is_idle
        idle = sum(v.num_pages for v in self._by_index.values() if v.is_idle)
        assert idle == self.num_idle_pages
