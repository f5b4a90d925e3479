"""Room in the arena: cached prefixes and idle adapters go. First what a tenant has borrowed: idle
adapters of tenants above their quota, then cached prefixes of the tenant furthest above its share
of pages; then whatever is cheapest to bring back for its size. Standard library only.
"""

from __future__ import annotations

from collections.abc import Hashable

from engine.adapters.quotas import Quotas
from engine.adapters.residents import ADAPTER_KIND, Residents
from engine.adapters.version import Version
from engine.arena import Arena
from engine.eviction import GreedyDualSize
from engine.page_shares import PageShares
from engine.prefix import PrefixNode, PrefixTree

LOOK_AFTER = 64
"""Evictions after which it is looked again who is above their share of pages: with a thousand
tenants a look at all of them takes as long as a whole step may."""


class Reclaim:
    """All or nothing: nothing is evicted where that would not be enough. `begin` is called once,
    with the tenants' shares of pages.

    quotas: of tenants on the device.
    plan_id, in every call: the last launched plan, which may still use what is evicted.
    num_prefixes: cached pages that have made way. `Residents` counts adapters.
    """

    def __init__(
        self,
        arena: Arena,
        idle: GreedyDualSize[Hashable],
        prefix: PrefixTree,
        residents: Residents,
        quotas: Quotas,
    ) -> None:
        self._arena = arena
        self._idle = idle
        self._prefix = prefix
        self._residents = residents
        self.quotas = quotas
        self._borrower: str | None = None
        self._num_left = 0  # evictions until the next look, or pages that the borrower is above
        self.num_prefixes = 0

    def begin(self, shares: PageShares) -> None:
        self._shares = shares

    @property
    def num_available(self) -> int:
        """Pages free or idle."""
        return self._arena.num_free + self._prefix.num_idle + self._residents.num_idle_pages

    def for_pages(self, num_pages: int, plan_id: int) -> bool:
        """Sees to it that so many pages are free. False: there aren't as many free or idle ones."""
        if self._arena.num_free >= num_pages:
            return True
        if self.num_available < num_pages:
            return False
        while self._arena.num_free < num_pages:
            self._evict_one(None, plan_id)
        return True

    def for_adapter(self, num_pages: int, plan_id: int) -> bool:
        """Sees to it that the arena grants a claim of so many pages."""
        if self.adapter_shortage(num_pages) > 0 or self.num_available < num_pages:
            return False
        while self._arena.adapter_pages + num_pages > self._arena.max_adapter_pages:
            self._evict_one((ADAPTER_KIND,), plan_id)
        return self.for_pages(num_pages, plan_id)

    def keep_quota(self, version: Version, plan_id: int) -> bool:
        """The tenant's own idle adapters make way for its next one. False: it is above its quota
        with it even so."""
        tenant = version.ref.tenant
        while self.quotas.excess(tenant, version.num_bytes):
            victim = self._idle.pop((ADAPTER_KIND,), lambda key: _owner(key) == tenant)
            if not isinstance(victim, Version):
                return False
            self._residents.evict(victim, plan_id)
        return True

    def keep_page_quota(self, tenant: str, num_pages: int, plan_id: int) -> bool:
        """The tenant's own cached prefixes make way for so many pages more. False: it is above its
        hard limit with them even so."""
        while excess := self._shares.excess(tenant, num_pages):
            if self._prefix.num_idle_of(tenant) < excess:
                return False
            self._evict_prefix(tenant, plan_id)
        return True

    def free_shortage(self, num_pages: int) -> int:
        """Pages that would have to come free before a claim of so many that evicts nothing."""
        beside = self._arena.adapter_pages + num_pages - self._arena.max_adapter_pages
        return max(num_pages - self._arena.num_free, beside)

    def adapter_shortage(self, num_pages: int) -> int:
        """Pages of adapters in use or waited for that would have to go before a claim of so many
        pages leaves the KV reserve alone; 0 or less where idle ones are enough."""
        after = self._arena.adapter_pages + num_pages - self._residents.num_idle_pages
        return after - self._arena.max_adapter_pages

    def _evict_one(self, kinds: tuple[str, ...] | None, plan_id: int) -> None:
        victim = None
        if self.quotas.over:
            over = self.quotas.over
            victim = self._idle.pop((ADAPTER_KIND,), lambda key: _owner(key) in over)
        if victim is None and kinds is None and self._evict_borrowed(plan_id):
            return
        if victim is None:
            victim = self._idle.pop(kinds)
        if isinstance(victim, PrefixNode):
            self.num_prefixes += 1
            self._arena.free((self._prefix.evict(victim),), plan_id)
        else:
            assert isinstance(victim, Version), "fewer idle pages than counted"
            self._residents.evict(victim, plan_id)

    def _evict_borrowed(self, plan_id: int) -> bool:
        """A cached prefix of the tenant furthest above its share of pages. False: there is none."""
        if self._num_left == 0:
            found = self._shares.furthest()
            self._borrower, self._num_left = found or (None, LOOK_AFTER)
        self._num_left -= 1
        if self._borrower is None or not self._prefix.num_idle_of(self._borrower):
            return False
        self._evict_prefix(self._borrower, plan_id)
        return True

    def _evict_prefix(self, tenant: str, plan_id: int) -> None:
        self.num_prefixes += 1
        page_id = self._prefix.evict(self._prefix.take_idle(tenant))
        self._arena.free((page_id,), plan_id)


def _owner(key: Hashable) -> str | None:
    return key.ref.tenant if isinstance(key, Version) else None
