"""How many KV pages each tenant has, may have, and is above its share. Standard library only.

Pages of a tenant: those its sequences refer to, one that two of them share counted for each, and
those of its cached prefixes that no sequence uses. Its share: its weight over the weights of the
tenants with work, and no more than its `soft_kv_share`. What others leave idle may be borrowed, up
to `hard_kv_share`, and goes first: cached prefixes before the work of anybody.
"""

from __future__ import annotations

from engine.accounts import Accounts
from engine.errors import InvalidRequest
from engine.prefix import PrefixTree
from engine.running import RunningSet
from engine.types import Tenant


class PageShares:
    """num_pages: pages that sequences could hold if no adapter were on the device."""

    def __init__(
        self, running: RunningSet, prefix: PrefixTree, accounts: Accounts, num_pages: int
    ) -> None:
        self._running = running
        self._prefix = prefix
        self._accounts = accounts
        self._num_pages = num_pages
        self._soft: dict[str, int] = {}
        self._hard: dict[str, int] = {}

    def learn(self, tenant: Tenant) -> None:
        """The tenant's limits, from now on."""
        for limits, part in (
            (self._soft, tenant.soft_kv_share),
            (self._hard, tenant.hard_kv_share),
        ):
            if part is not None:
                limits[tenant.id] = max(1, int(part * self._num_pages))
            elif tenant.id in limits:
                del limits[tenant.id]

    def refusal(self, tenant: str, num_tokens: int) -> InvalidRequest | None:
        """Of a sequence that is to hold so many tokens and can't, even with all that its tenant may
        have."""
        limit = self._hard.get(tenant)
        if limit is None:
            return None
        page_tokens = self._prefix.page_tokens
        needed = -(-num_tokens // page_tokens)
        if needed <= limit:
            return None
        return InvalidRequest(
            f"The request takes up to {needed * page_tokens} tokens of KV and its tenant may hold"
            f" {limit * page_tokens} on a replica. Shorten it or raise the tenant's hard_kv_share.",
            code="kv_share_exceeded",
            param="max_tokens",
        )

    def share(self, tenant: str) -> int:
        """Pages that nobody takes from its sequences; at least 1."""
        share = self._accounts.share(tenant, self._num_pages)
        soft = self._soft.get(tenant)
        return share if soft is None else min(share, soft)

    def held(self, tenant: str) -> int:
        return self._running.num_pages_of(tenant) + self._prefix.num_idle_of(tenant)

    def excess(self, tenant: str, num_pages: int) -> int:
        """Pages above its hard limit with so many more; 0 where it has none."""
        limit = self._hard.get(tenant)
        return 0 if limit is None else max(0, self.held(tenant) + num_pages - limit)

    def furthest(self) -> tuple[str, int] | None:
        """The tenant with cached prefixes that nobody uses that is furthest above its share, for
        that share; and by how many pages, those prefixes alone counted."""
        furthest, most = None, 1.0
        for tenant, num_idle in self._prefix.idle_by_tenant():
            held = self._running.num_pages_of(tenant) + num_idle
            share = self._share_or_one(tenant)
            if held > most * share:
                furthest, most = (tenant, min(num_idle, held - share)), held / share
        return furthest

    def _share_or_one(self, tenant: str) -> int:
        try:
            return self.share(tenant)
        except KeyError:  # idle for so long that its account is forgotten
            return 1
