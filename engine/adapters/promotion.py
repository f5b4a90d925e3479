"""HOST to DEVICE: who gets a run of the arena next, and who yields theirs.

Those of the tenant with the least account come first. One that finds no room, even after all that
is idle has gone, makes others *yield*: admission to them closes, their sequences drain, and once
enough have drained they go together. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.adapters.residents import Residents
from engine.adapters.version import State, Version
from engine.arena import Arena
from engine.config import AdapterConfig
from engine.reclaim import Reclaim

MAX_UPLOADS = 4


@dataclass(frozen=True, slots=True)
class UploadOrder:
    """Copy a block of host memory into the arena: the arguments of `Runner.upload`."""

    key: str
    host_offset: int
    num_bytes: int
    start_page: int


class Promotion:
    """account: a tenant's account value. slack: accounts no further apart count as equal.

    An adapter that is in use or waited for keeps its place for `min_residency_s`, and as long as
    its tenant is neither ahead of the one that waits for room nor itself waiting for room.
    """

    def __init__(
        self,
        arena: Arena,
        residents: Residents,
        reclaim: Reclaim,
        config: AdapterConfig,
        account: Callable[[str], float],
        slack: float,
    ) -> None:
        self._arena = arena
        self._residents = residents
        self._reclaim = reclaim
        self._config = config
        self._account = account
        self._slack = slack
        self._waiting: dict[str, Version] = {}
        self._claimed: dict[str, Version] = {}
        self._uploading: dict[str, Version] = {}
        self._is_yielding = False
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

    def advance(self, now: float, plan_id: int) -> list[UploadOrder]:
        """Claims, yields, and the uploads to begin now. plan_id: the last launched plan."""
        self.starved = None
        if self._waiting:
            self._claim_in_turn(now, plan_id)
        elif self._is_yielding:
            self._stop_yielding()
        return self._begin_uploads(now) if self._claimed else []

    def uploaded(self, key: str, now: float) -> Version:
        """Its upload is complete: from now on it is a resident."""
        version = self._uploading.pop(key)
        version.upload_s = now - version.began_s
        self._arena.end_upload(version.adapter)
        self._residents.add(version, now)
        return version

    def overdue(self, now: float) -> list[Version]:
        """Those that were to yield and have not drained within `max_drain_s`."""
        if not self._is_yielding:
            return []
        limit = now - self._config.max_drain_s
        return [v for v in self._closed() if v.num_leases and _closed_at(v) <= limit]

    def check(self) -> None:
        assert all(v.state is State.HOST for v in self._waiting.values())
        assert all(v.state is State.CLAIMED for v in self._claimed.values())
        assert all(v.state is State.UPLOADING for v in self._uploading.values())
        assert self._is_yielding or not self._closed()
        num_runs = len(self._claimed) + len(self._uploading) + len(list(self._residents))
        assert num_runs == self._arena.num_adapters

    # Claims

    def _claim_in_turn(self, now: float, plan_id: int) -> None:
        first_blocked: Version | None = None
        for version in sorted(self._waiting.values(), key=self._turn):
            may_claim = version.num_waiting or first_blocked is None
            if may_claim and self._claim(version, plan_id):
                continue
            if not version.num_waiting:
                self.unwant(version)
            elif first_blocked is None:
                if self._claim_from_others(version, now, plan_id):
                    continue
                first_blocked = version
                if self._is_yielding or self.starved:
                    break
        if first_blocked is None and self._is_yielding:
            self._stop_yielding()

    def _claim(self, version: Version, plan_id: int) -> bool:
        """A run for it, from what is free or idle. Only a request that waits is worth evicting."""
        if version.num_waiting and not self._reclaim.for_adapter(version.num_pages, plan_id):
            return False
        adapter = self._arena.claim(version.num_bytes)
        if adapter is None:
            return False
        del self._waiting[version.key]
        version.adapter = adapter
        version.state = State.CLAIMED
        version.blocked_since_s = None
        self._claimed[version.key] = version
        return True

    def _claim_from_others(self, version: Version, now: float, plan_id: int) -> bool:
        """Makes others yield, and claims once they have."""
        if version.blocked_since_s is None:
            version.blocked_since_s = now
        shortage = self._reclaim.adapter_shortage(version.num_pages)
        self._close(version, shortage, now)
        drained = [v for v in self._closed() if not v.num_leases and not v.is_idle]
        num_drained = sum(v.num_pages for v in drained)
        is_held_by_sequences = self._reclaim.num_available + num_drained < version.num_pages
        if is_held_by_sequences:
            if now - version.blocked_since_s >= self._config.min_residency_s:
                self.starved = version
            return False
        if num_drained < shortage:
            return False
        for victim in drained:
            self._residents.evict(victim, plan_id)
            if self._claim(version, plan_id):
                self._stop_yielding()
                return True
        return False

    def _close(self, claimant: Version, shortage: int, now: float) -> None:
        """Closes admission to as many adapters as make up for the shortage, or to none."""
        num_closed = sum(v.num_pages for v in self._closed() if not v.is_idle)
        if num_closed >= shortage:
            return
        chosen: list[Version] = []
        for version in sorted(self._yielders(claimant, now), key=self._yields_before):
            chosen.append(version)
            num_closed += version.num_pages
            if num_closed >= shortage:
                break
        else:
            return
        self._is_yielding = True
        for version in chosen:
            self._residents.close(version, now)

    def _yielders(self, claimant: Version, now: float) -> list[Version]:
        waiting_tenants = {version.tenant for version in self._waiting.values()}
        limit = self._account(claimant.tenant) + self._slack
        oldest = now - self._config.min_residency_s
        return [
            v
            for v in self._residents
            if v.is_open
            and not v.is_idle
            and v.resident_since_s <= oldest
            and (v.tenant in waiting_tenants or self._account(v.tenant) > limit)
        ]

    def _stop_yielding(self) -> None:
        self._is_yielding = False
        self._residents.reopen()

    def _closed(self) -> list[Version]:
        if not self._is_yielding:
            return []
        return [version for version in self._residents if version.closed_since_s is not None]

    def _turn(self, version: Version) -> tuple[bool, float, int]:
        return (version.num_waiting == 0, self._account(version.tenant), version.order)

    def _yields_before(self, version: Version) -> tuple[float, float]:
        return (-self._account(version.tenant), version.resident_since_s)

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
                start = self._arena.begin_upload(version.adapter)
                assert version.host_offset is not None
                orders.append(
                    UploadOrder(version.key, version.host_offset, version.num_bytes, start)
                )
        return orders


def _closed_at(version: Version) -> float:
    assert version.closed_since_s is not None
    return version.closed_since_s
