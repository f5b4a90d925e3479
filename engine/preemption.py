"""Whom to take a row or pages from. Standard library only.

Every rule takes the *newest* sequence of some tenant and never the oldest of all: that one can
always run to its end, so the whole never locks up. Nobody is taken below their share (`Accounts`:
weight over the weights of tenants with work) for somebody else's newcomer. A tenant that has a row
already takes nothing from one whose account is less than its own. Where neither is far from its
share the other must be clearly ahead: what is taken has to be computed again, and would be taken
back. Under `fcfs` the newest of all goes, for growth alone.
"""

from __future__ import annotations

from engine.accounts import Accounts
from engine.page_shares import PageShares
from engine.running import RunningSet
from engine.sequence import Sequence

FAR_ABOVE, FAR_BELOW = 1.5, 0.5
"""Times a tenant's share."""


class Preemption:
    def __init__(self, running: RunningSet, accounts: Accounts, shares: PageShares) -> None:
        self._running = running
        self._accounts = accounts
        self._shares = shares

    def is_below_share(self, tenant: str, num_pages: int) -> bool:
        """Whether one row more with `num_pages` leaves the tenant within its share.

        One row is anybody's share, with the pages that it needs.
        """
        if not self._accounts.is_fair:
            return False
        if self._running.num_rows_of(tenant) == 0:
            return True
        pages = self._running.num_pages_of(tenant) + num_pages
        return self.is_below_row_share(tenant) and pages <= self._shares.share(tenant)

    def is_below_row_share(self, tenant: str) -> bool:
        """Whether one row more leaves the tenant within its share of rows."""
        rows = self._running.num_rows_of(tenant)
        if not self._accounts.is_fair:
            return False
        return rows == 0 or rows + 1 <= self._row_share(tenant)

    def for_row(self, plan_id: int, newcomer: str | None = None) -> Sequence | None:
        """Gives up a row: of the tenant with most rows for its share, that stays at or above it.

        Not a sequence that got its row in plan `plan_id`, the one being made. newcomer: the tenant
        that gets it; None: is there anybody to take from at all?
        """
        if not self._accounts.is_fair:
            return None
        furthest, most = None, 0.0
        for tenant, mine in self._running.several():
            share = self._row_share(tenant)
            if len(mine) - 1 >= share and len(mine) / share > most:
                furthest, most = mine[-1], len(mine) / share
        return self._unless_exempt(furthest, plan_id, newcomer, most)

    def for_pages(self, plan_id: int, newcomer: str | None = None) -> Sequence | None:
        """Gives up its pages: likewise by pages, and its tenant keeps a row at least."""
        furthest, most = None, 0.0
        for tenant, mine in self._running.several():
            pages, share = self._running.num_pages_of(tenant), self._shares.share(tenant)
            if pages - len(mine[-1].pages) >= share and pages / share > most:
                furthest, most = mine[-1], pages / share
        return self._unless_exempt(furthest, plan_id, newcomer, most)

    def num_pages_above(self) -> int:
        """Pages that tenants hold above their share: what `for_pages` could bring in at most."""
        return sum(
            max(0, self._running.num_pages_of(tenant) - self._shares.share(tenant))
            for tenant, _ in self._running.several()
        )

    def for_growth(self, sequence: Sequence, plan_id: int) -> Sequence | None:
        """Gives up its pages so that `sequence` can decode on.

        The newest of the tenant furthest above its share; else its own tenant's newest, itself
        perhaps. For the oldest of all anybody's newest will do. None: it is alone.
        """
        victim = self.for_pages(plan_id) if self._accounts.is_fair else self._running.newest
        if victim is None:
            victim = self.own_newest(sequence)
        if victim is self._running.oldest:
            victim = self._running.newest
        return None if victim is self._running.oldest else victim

    def own_newest(self, sequence: Sequence) -> Sequence:
        """The newest of its tenant's, itself perhaps."""
        return self._running.of(sequence.tenant)[-1]

    def for_drain(self, key: str) -> Sequence | None:
        """The newest sequence that uses this adapter, so that the adapter can yield."""
        users = [s for s in self._running if s.adapter_key == key]
        return users[-1] if users and users[-1] is not self._running.oldest else None

    def _unless_exempt(
        self, victim: Sequence | None, plan_id: int, newcomer: str | None, times_share: float
    ) -> Sequence | None:
        if victim is None or victim is self._running.oldest or victim.first_plan == plan_id:
            return None
        if newcomer is None or not self._running.num_rows_of(newcomer):
            return victim
        lead = self._accounts.lead(victim.tenant, newcomer)
        part = self._running.num_rows_of(newcomer) / self._row_share(newcomer)
        if times_share < FAR_ABOVE or part > FAR_BELOW:
            lead -= self._accounts.price_of_reading(victim.tenant, victim.num_computed)
        return victim if lead >= 0 else None

    def _row_share(self, tenant: str) -> int:
        return self._accounts.share(tenant, self._running.max_rows)
