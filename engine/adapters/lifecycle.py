"""An adapter version from its first wish to its last copy: the moves between `State`s that more
than one tier has a part in. Standard library only.
"""

from __future__ import annotations

from engine.adapters.counts import TierCounts
from engine.adapters.loading import Loading
from engine.adapters.promotion import Promotion
from engine.adapters.residency import ResidencyReport
from engine.adapters.residents import Residents
from engine.adapters.version import State, Tier, Version
from engine.arena import Arena
from engine.messages import Discard, LoadDone
from engine.timeline import Journey
from engine.types import AdapterRef


class Lifecycle:
    """All versions that are anywhere or wanted, by `ref.key`. `begin` is called once, with the
    tiers, whose own events come back here. itemsize: bytes of one element."""

    def __init__(self, arena: Arena, itemsize: int) -> None:
        self._arena = arena
        self._itemsize = itemsize
        self.versions: dict[str, Version] = {}
        self.report = ResidencyReport()
        self.counts = TierCounts()
        self._discards: list[Discard] = []
        self._num_wishes = 0

    def begin(self, loading: Loading, promotion: Promotion, residents: Residents) -> None:
        self._loading = loading
        self._promotion = promotion
        self._residents = residents

    def take_discards(self) -> list[Discard]:
        discards, self._discards = self._discards, []
        return discards

    def version(self, ref: AdapterRef) -> Version:
        """What is known of it; a version that nobody knew begins as WANTED."""
        version = self.versions.get(ref.key)
        if version is None:
            num_bytes = ref.num_elements * self._itemsize
            version = Version(ref, num_bytes, self._arena.pages_for(num_bytes), ref.tenant)
            self.versions[ref.key] = version
        return version

    def approach(self, version: Version, goal: Tier) -> None:
        """Its next step towards the goal, behind those who already wait for theirs."""
        version.order = self._num_wishes
        self._num_wishes += 1
        version.goal = max(version.goal, goal)
        if version.state is State.HOST and version.goal is Tier.DEVICE:
            self._promotion.want(version)
        elif version.state is State.WANTED:
            self._loading.want(version)
        self.refresh(version)

    def refresh(self, version: Version) -> None:
        """Call after its waiting requests, its pin or its state have changed: may it go?"""
        self._residents.refresh(version)
        self._loading.refresh(version)

    def drop(self, ref: AdapterRef, plan_id: int) -> None:
        """A retired version that nobody uses; one that is on its way between tiers comes later."""
        version = self.versions.get(ref.key)
        if version is None:
            self._discards.append(Discard(ref))
            return
        if version.state is State.DEVICE:
            self._residents.evict(version, plan_id)
        if version.state is State.HOST:
            self._loading.drop(version)
            self.on_dropped(version)
        elif version.state is State.WANTED and ref.key in self.versions:
            self._loading.unwant(version)
            self.forget(version)

    def forget(self, version: Version) -> None:
        del self.versions[version.key]
        self.report.touch(version.key)

    def changed(self, version: Version) -> None:
        self.refresh(version)
        self.report.touch(version.key)

    def arrived(self, version: Version, done: LoadDone, now: float) -> None:
        """Its load has ended."""
        self.report.touch(version.key)
        if version.journey is not None:
            version.journey.arrived(done.steps, done.from_disk, now)

    def journey(self, key: str, since_s: float) -> Journey | None:
        """Its way to the device, if it has not been there all the time since then."""
        version = self.versions.get(key)
        journey = None if version is None else version.journey
        if journey is None or (journey.is_over and journey.resident_s <= since_s):
            return None
        return journey

    def on_evicted(self, version: Version) -> None:
        self.counts.num_evicted += 1
        self.report.touch(version.key)
        version.goal = Tier.HOST
        if version.host_offset is None:
            version.state = State.WANTED
        if version.num_waiting:
            self.approach(version, Tier.DEVICE)
        elif version.state is State.WANTED:
            self.forget(version)
        self._loading.refresh(version)

    def on_dropped(self, version: Version) -> None:
        """Its block has left host memory."""
        self.report.touch(version.key)
        if version.state is State.HOST:
            self._promotion.unwant(version)
            self.forget(version)
