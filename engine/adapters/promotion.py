"""HOST to DEVICE: who gets a run of the arena next.

Those of the tenant with the least account come first. One that finds no room, even after all that
is idle has gone, makes others yield (`Yielding`); once enough have drained they go together.
Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain

from engine.adapters.residents import Residents
from engine.adapters.version import State, Tier, Version
from engine.adapters.yielding import Claimant, Yielding
from engine.arena import Arena
from engine.config import AdapterConfig
from engine.reclaim import Reclaim
from engine.timeline import Journey

MAX_UPLOADS = 4
MAX_TRIES = 32
"""In one step: trying every one of a thousand that wait would take longer than the step."""


@dataclass(frozen=True, slots=True)
class UploadOrder:
    """Copy a block of host memory into the arena: the arguments of `Runner.upload`."""

    key: str
    host_offset: int
    num_bytes: int
    start_page: int


class Promotion:
    """reclaim: its quotas count a version from the claim on. account: a tenant's account value.
    changed: called with a version that has taken a step, or is to take none any more."""

    def __init__(
        self,
        arena: Arena,
        residents: Residents,
        reclaim: Reclaim,
        yielding: Yielding,
        config: AdapterConfig,
        account: Callable[[str], float],
        changed: Callable[[Version], None],
    ) -> None:
        self._arena = arena
        self._residents = residents
        self._reclaim = reclaim
        self._yielding = yielding
        self._quotas = reclaim.quotas
        self._config = config
        self._account = account
        self._changed = changed
        self._waiting: dict[str, Version] = {}
        self._claimed: dict[str, Version] = {}
        self._uploading: dict[str, Version] = {}
        self._keeps_room = False  # for the first that is blocked, since nobody may yield yet
        self.starved: Version | None = None
        """A version that has waited for room for `min_residency_s` or longer while sequences hold
        it: those who would admit a new one let it through first."""

    @property
    def is_active(self) -> bool:
        return bool(self._waiting or self._claimed or self._uploading)

    def want(self, version: Version) -> None:
        """Its block lies in host memory: bring it to the device when its turn comes."""
        self._waiting[version.key] = version

    def unwant(self, version: Version) -> None:
        """Nobody waits for it any more. What has been claimed for it is completed all the same."""
        if self._waiting.pop(version.key, None) is not None:
            version.blocked_since_s = None
            version.is_ordered = False
            version.goal = Tier.HOST
            self._changed(version)

    def advance(self, now: float, plan_id: int) -> list[UploadOrder]:
        """Claims, yields, and the uploads to begin now. plan_id: the last launched plan."""
        self.starved = None
        self._keeps_room = False
        self._residents.take_evicted()  # what has gone before made way for others
        if self._waiting:
            self._claim_in_turn(now, plan_id)
        elif self._yielding.is_yielding:
            self._yielding.reopen()
        return self._begin_uploads(now) if self._claimed else []

    def uploaded(self, key: str, now: float) -> Version:
        """Its upload is complete: from now on it is a resident."""
        version = self._uploading.pop(key)
        version.upload_s = now - version.began_s
        if version.journey is not None:
            version.journey.resident_s = now
        version.is_ordered = False
        self._arena.end_upload(version.adapter)
        self._residents.add(version, now)
        self._changed(version)
        return version

    def check(self) -> None:
        assert all(v.state is State.HOST for v in self._waiting.values())
        assert all(v.state is State.CLAIMED for v in self._claimed.values())
        assert all(v.state is State.UPLOADING for v in self._uploading.values())
        self._yielding.check()
        placed = list(self._placed())
        assert len(placed) == self._arena.num_adapters
        by_tenant: Counter[str] = Counter()
        for version in placed:
            by_tenant[version.ref.tenant] += version.num_bytes
        self._quotas.check(by_tenant)

    # Claims

    def _claim_in_turn(self, now: float, plan_id: int) -> None:
        first_blocked: Version | None = None
        for version in nsmallest(MAX_TRIES, self._waiting.values(), key=self._turn):
            may_claim = version.num_waiting or first_blocked is None
            if may_claim and self._claim(version, now, plan_id):
                continue
            if not version.num_waiting:
                self.unwant(version)
            elif first_blocked is None:
                first_blocked = version
                if self._claim_from_others(version, now, plan_id):
                    first_blocked = None
                elif self._yielding.is_yielding or self.starved or self._keeps_room:
                    break
        if first_blocked is None and self._yielding.is_yielding:
            self._yielding.reopen()

    def _claim(self, version: Version, now: float, plan_id: int) -> bool:
        """A run for it, from what is free or idle. Only what is asked for is worth evicting."""
        if version.is_asked_for:
            is_within = self._reclaim.keep_quota(version, plan_id) or not self._is_bound(version)
            if is_within and not self._reclaim.for_adapter(version.num_pages, plan_id):
                return False
        elif self._quotas.excess(version.ref.tenant, version.num_bytes):
            return False
        adapter = self._arena.claim(version.num_bytes)
        if adapter is None:
            return False
        del self._waiting[version.key]
        version.adapter = adapter
        version.state = State.CLAIMED
        if version.journey is None or version.journey.is_over:
            version.journey = Journey()
        version.journey.claimed_s = now
        version.journey.displaced = self._residents.take_evicted()
        version.blocked_since_s = None
        self._claimed[version.key] = version
        self._changed(version)
        self._quotas.add(version.ref.tenant, version.num_bytes)
        return True

    def _is_bound(self, version: Version) -> bool:
        """At its tenant's quota, and the tenant's own adapters could make room for it."""
        tenant = version.ref.tenant
        if not self._quotas.excess(tenant, version.num_bytes):
            return False
        own = sum(
            v.num_pages
            for v in self._placed()
            if v.ref.tenant == tenant and v.pin is not Tier.DEVICE
        )
        return own > 0 and self._reclaim.free_shortage(version.num_pages) <= own

    def _claim_from_others(self, version: Version, now: float, plan_id: int) -> bool:
        """Makes others yield, and claims once they have."""
        if version.blocked_since_s is None:
            version.blocked_since_s = now
        is_bound = self._is_bound(version)
        num_available = self._arena.num_free if is_bound else self._reclaim.num_available
        shortage = (
            self._reclaim.free_shortage(version.num_pages)
            if is_bound
            else self._reclaim.adapter_shortage(version.num_pages)
        )
        is_long = now - version.blocked_since_s >= self._config.min_residency_s
        claimant = Claimant(version, shortage, is_bound)
        self._keeps_room = self._yielding.close(claimant, self._waiting.values(), now) and is_long
        drained = self._yielding.drained()
        num_drained = sum(v.num_pages for v in drained)
        if num_available + num_drained < version.num_pages:
            self.starved = version if is_long and not is_bound else None
            return False
        if num_drained < shortage:
            return False
        for victim in drained:
            self._residents.evict(victim, plan_id)
            if self._claim(version, now, plan_id):
                self._yielding.reopen()
                return True
        return False

    def _placed(self) -> chain[Version]:
        """Whatever has a run of the arena."""
        return chain(self._residents, self._claimed.values(), self._uploading.values())

    def _turn(self, version: Version) -> tuple[bool, bool, float, int]:
        return (
            not version.num_waiting,
            not version.is_ordered,
            self._account(version.tenant),
            version.order,
        )

    # Uploads

    def _begin_uploads(self, now: float) -> list[UploadOrder]:
        orders: list[UploadOrder] = []
        for version in list(self._claimed.values()):
            if len(self._uploading) == MAX_UPLOADS:
                break
            if self._arena.uploadable(version.adapter):
                del self._claimed[version.key]
                self._uploading[version.key] = version
                version.state = State.UPLOADING
                version.began_s = now
                if version.journey is not None:
                    version.journey.upload_s = now
                start = self._arena.begin_upload(version.adapter)
                assert version.host_offset is not None
                orders.append(
                    UploadOrder(version.key, version.host_offset, version.num_bytes, start)
                )
        return orders
