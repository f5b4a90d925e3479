"""Which adapter versions are where, as the core tells it and as its replica keeps it.

The core sends what has changed, so that a replica with thousands of versions costs a step nothing,
and the whole now and then, so that nothing that was ever missed stays wrong for good. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.adapters.version import State, Tier, Version
from engine.messages import Residency

LOADING, HOST, DEVICE, PINNED = 1, 2, 4, 8
WHOLE_S = 60.0
NAMES = {"loading": LOADING, "host": HOST, "device": DEVICE, "pinned": PINNED}


class ResidencyReport:
    """The core's side. `touch` is called for every version that may have changed places."""

    def __init__(self) -> None:
        self._touched: set[str] = set()
        self._told: dict[str, int] = {}
        self._whole_s = 0.0

    def touch(self, key: str) -> None:
        self._touched.add(key)

    def take(self, versions: Mapping[str, Version], now: float) -> Residency | None:
        """What there is to tell: None where nothing is known to have changed."""
        if not self._touched:
            return None
        changes = tuple(self._changes(versions))
        self._touched.clear()
        if not changes:
            return None
        self._told.update(changes)
        for key, places in changes:
            if not places:
                del self._told[key]
        if now < self._whole_s:
            return Residency(changes)
        self._whole_s = now + WHOLE_S
        return Residency(tuple(self._told.items()), is_whole=True)

    def check(self, versions: Mapping[str, Version]) -> None:
        """Raises AssertionError where something has changed that nobody touched."""
        places = {key: places_of(version) for key, version in versions.items()}
        untouched = {k: p for k, p in places.items() if p and k not in self._touched}
        assert untouched == {k: p for k, p in self._told.items() if k not in self._touched}

    def _changes(self, versions: Mapping[str, Version]) -> Iterable[tuple[str, int]]:
        for key in self._touched:
            version = versions.get(key)
            places = 0 if version is None else places_of(version)
            if places != self._told.get(key, 0):
                yield key, places


class ResidencyTable:
    """The replica's side: versions by `ref.key` in each of the places, as last told."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def apply(self, residency: Residency) -> None:
        if residency.is_whole:
            self._places = dict(residency.places)
            return
        for key, places in residency.places:
            if places:
                self._places[key] = places
            else:
                self._places.pop(key, None)

    def places(self, key: str) -> int:
        """The sum of the places where the version is; 0: nowhere."""
        return self._places.get(key, 0)

    def lists(self) -> dict[str, list[str]]:
        """The versions in each place, by its name."""
        return {name: list(self._at(place)) for name, place in NAMES.items()}

    @property
    def loading(self) -> tuple[str, ...]:
        return self._at(LOADING)

    @property
    def host(self) -> tuple[str, ...]:
        return self._at(HOST)

    @property
    def device(self) -> tuple[str, ...]:
        return self._at(DEVICE)

    @property
    def pinned(self) -> tuple[str, ...]:
        return self._at(PINNED)

    def _at(self, place: int) -> tuple[str, ...]:
        return tuple(key for key, places in self._places.items() if places & place)


def places_of(version: Version) -> int:
    """The sum of the places where the version is."""
    places = LOADING if version.is_loading else 0
    if version.host_offset is not None and not version.is_loading:
        places |= HOST
    if version.state is State.DEVICE:
        places |= DEVICE
    is_pinned = version.pin is not Tier.COLD and is_at(version, version.pin)
    return places | (PINNED if is_pinned else 0)


def is_at(version: Version, tier: Tier) -> bool:
    """Whether the version is in this very tier, HOST or DEVICE; it can be in both."""
    if tier is Tier.DEVICE:
        return version.state is State.DEVICE
    return version.host_offset is not None and not version.is_loading
