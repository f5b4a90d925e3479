"""Versions that an operator keeps in a tier, whether or not requests come. Standard library only.

A pin takes effect once the largest adapter that is waited for would still have room beside all that
is pinned: what a pin would shut out is served first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engine.adapters.host import HostPool
from engine.adapters.residency import is_at
from engine.adapters.version import Tier, Version
from engine.arena import Arena
from engine.errors import AdapterUnavailable, ErrorInfo
from engine.messages import Pin
from engine.types import AdapterRef

PAUSE_S = 0.1


class Pins:
    """bring: called for a version that is pinned and not there, again and again.
    changed: called with a version whose pin has taken effect or ended."""

    def __init__(
        self,
        arena: Arena,
        pool: HostPool,
        versions: Mapping[str, Version],
        changed: Callable[[Version], None],
        bring: Callable[[AdapterRef, Tier, float], Version | None],
    ) -> None:
        self._arena = arena
        self._pool = pool
        self._versions = versions
        self._changed = changed
        self._bring = bring
        self._pins: dict[str, tuple[AdapterRef, Tier]] = {}
        self._due_s = 0.0

    def set(self, pins: Iterable[Pin]) -> None:
        """All pins from now on."""
        tiers = {p.ref.key: (p.ref, Tier.DEVICE if p.on_device else Tier.HOST) for p in pins}
        for key, (_, tier) in self._pins.items():
            if tiers.get(key, (None, Tier.COLD))[1] is not tier:
                self._end(key)
        self._pins = tiers
        self._due_s = 0.0

    def drop(self, key: str) -> None:
        """Its version is retired."""
        if self._pins.pop(key, None) is not None:
            self._end(key)

    def advance(self, now: float) -> None:
        """Brings what is pinned and not there a step nearer, every `PAUSE_S`."""
        if not self._pins or now < self._due_s:
            return
        self._due_s = now + PAUSE_S
        for key, (ref, tier) in self._pins.items():
            version = self._versions.get(key)
            if version is None or not is_at(version, tier):
                version = self._bring(ref, tier, now)
            if version is not None and version.pin is not tier and self._leaves_room(version, tier):
                version.pin = tier
                self._changed(version)

    def obstacle(self, num_bytes: int) -> ErrorInfo | None:
        """Why an adapter of so many bytes can't be served beside what is pinned, if it can't."""
        if not self._pins:
            return None
        room = (self._arena.max_adapter_pages - self._device_pages()) * self._arena.page_bytes
        where = "on the device"
        if num_bytes <= room:
            room, where = self._pool.room_beside(self._host_offsets()), "in host memory"
        if num_bytes <= room:
            return None
        message = (
            f"The adapter takes {num_bytes} bytes, and {where} pinned adapters leave {room}."
            " Unpin some, or give adapters more memory."
        )
        return AdapterUnavailable(message, code="no_room_beside_pins").info()

    def check(self) -> None:
        for version in self._versions.values():
            if version.pin is not Tier.COLD:
                assert self._pins[version.key][1] is version.pin
        assert self._device_pages() <= self._arena.max_adapter_pages

    def _end(self, key: str) -> None:
        version = self._versions.get(key)
        if version is not None and version.pin is not Tier.COLD:
            version.pin = Tier.COLD
            self._changed(version)

    def _leaves_room(self, version: Version, tier: Tier) -> bool:
        waited = [v for v in self._versions.values() if v.num_waiting]
        if tier is Tier.DEVICE:
            largest = max((v.num_pages for v in waited), default=0)
            pinned = self._device_pages() + version.num_pages
            return pinned + largest <= self._arena.max_adapter_pages
        if version.host_offset is None:
            return False
        largest = max((v.num_bytes for v in waited), default=0)
        return self._pool.room_beside([*self._host_offsets(), version.host_offset]) >= largest

    def _device_pages(self) -> int:
        return sum(v.num_pages for v in self._pinned() if v.pin is Tier.DEVICE)

    def _host_offsets(self) -> list[int]:
        """Of blocks that can't be dropped: one that is on the device needs no copy."""
        return [
            v.host_offset
            for v in self._pinned()
            if v.host_offset is not None and not (v.pin is v.tier is Tier.DEVICE)
        ]

    def _pinned(self) -> list[Version]:
        versions = (self._versions.get(key) for key in self._pins)
        return [v for v in versions if v is not None and v.pin is not Tier.COLD]
