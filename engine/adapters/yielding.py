"""Who yields a place on the device to one that waits for it. Standard library only.

An adapter that is in use or waited for keeps its place for `min_residency_s`, and as long as its
tenant is neither ahead of the one that waits for room, nor itself waiting for room, nor above its
quota. Then admission to it closes, its sequences drain within `max_drain_s` or are preempted, and
it yields; its requests keep their place in the queue.

How long one whose turn has come waits at most, in seconds: `min_residency_s` until those who may
yield have had their time, and once more where that has to be held open for a large one;
`max_drain_s` for their sequences, and once more where the oldest sequence of all turns out to be
one of them, which is never preempted; then its upload. Where nothing but that sequence's adapter
could make room, it is that sequence's time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from engine.adapters.quotas import Quotas
from engine.adapters.residents import Residents
from engine.adapters.version import Tier, Version
from engine.config import AdapterConfig


@dataclass(frozen=True, slots=True)
class Claimant:
    """One that waits for room. shortage: pages that others must yield. is_bound: its tenant is at
    its quota, so that only the tenant's own adapters yield."""

    version: Version
    shortage: int
    is_bound: bool


class Yielding:
    """account: a tenant's account value. slack: accounts no further apart count as equal."""

    def __init__(
        self,
        residents: Residents,
        quotas: Quotas,
        config: AdapterConfig,
        account: Callable[[str], float],
        slack: float,
    ) -> None:
        self._residents = residents
        self._quotas = quotas
        self._config = config
        self._account = account
        self._slack = slack
        self.oldest: str | None = None
        """The adapter of the oldest sequence of all, which is never preempted."""
        self.is_yielding = False

    def close(self, claimant: Claimant, waiting: Iterable[Version], now: float) -> bool:
        """Closes admission to as many adapters as make up for the shortage, or to none. True: they
        would, but haven't had their time yet, so that what comes free must be kept for it."""
        closed = [v for v in self.closed() if not v.is_idle and not self._is_stuck(v, now)]
        lacking = claimant.shortage - sum(v.num_pages for v in closed)
        if lacking <= 0:
            return False
        yielders = self._yielders(claimant, {v.tenant for v in waiting if v.num_waiting})
        aged = [v for v in yielders if v.resident_since_s <= now - self._config.min_residency_s]
        chosen = self._enough(aged, lacking)
        if not chosen:
            return bool(self._enough(yielders, lacking))
        self.is_yielding = True
        for version in chosen:
            self._residents.close(version, now)
        return False

    def reopen(self) -> None:
        """Nobody waits for them to yield any more."""
        self.is_yielding = False
        self._residents.reopen()

    def closed(self) -> list[Version]:
        if not self.is_yielding:
            return []
        return [version for version in self._residents if version.closed_since_s is not None]

    def drained(self) -> list[Version]:
        """Those that can go now."""
        return [v for v in self.closed() if not v.num_leases and not v.is_idle]

    def overdue(self, now: float) -> list[Version]:
        """Those that were to yield and have not drained within `max_drain_s`."""
        return [v for v in self.closed() if self._is_overdue(v, now)]

    def check(self) -> None:
        assert self.is_yielding or all(v.closed_since_s is None for v in self._residents)

    def _is_stuck(self, version: Version, now: float) -> bool:
        """Another has to yield in its place, since its last sequence can't be preempted."""
        return version.key == self.oldest and self._is_overdue(version, now)

    def _is_overdue(self, version: Version, now: float) -> bool:
        since_s = version.closed_since_s
        if since_s is None or not version.num_leases:
            return False
        return since_s <= now - self._config.max_drain_s

    def _yielders(self, claimant: Claimant, waiting_tenants: Collection[str]) -> list[Version]:
        """Whoever could yield to it, those who do first at the beginning."""
        limit = self._account(claimant.version.tenant) + self._slack
        owner = claimant.version.ref.tenant

        def may_yield(version: Version) -> bool:
            if not version.is_open or version.is_idle or version.pin is Tier.DEVICE:
                return False
            if claimant.is_bound:
                return version.ref.tenant == owner
            return (
                version.tenant in waiting_tenants
                or version.ref.tenant in self._quotas.over
                or self._account(version.tenant) > limit
            )

        return sorted(filter(may_yield, self._residents), key=self._yields_before)

    def _enough(self, versions: list[Version], num_pages: int) -> list[Version]:
        """The first of them that have so many pages together; none where all haven't."""
        chosen: list[Version] = []
        for version in versions:
            chosen.append(version)
            num_pages -= version.num_pages
            if num_pages <= 0:
                return chosen
        return []

    def _yields_before(self, version: Version) -> tuple[bool, bool, float, float]:
        return (
            version.key == self.oldest,
            version.ref.tenant not in self._quotas.over,
            -self._account(version.tenant),
            version.resident_since_s,
        )
