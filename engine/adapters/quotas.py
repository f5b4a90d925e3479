"""How many bytes of a tier each tenant's adapters take, and how many they may. Pure bookkeeping.

The limits are soft. At its limit a tenant's own adapters make way for its next one, idle ones at
once and used ones by the rule of turns; what nobody uses it may have beyond that, and it is the
first to lose it. A tenant with nothing that could make way gets one adapter all the same, so that
no limit, however small, shuts it out. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.usage import ByteSeconds


class Quotas:
    """Of one tier. Tenants without a limit are counted, too: they may get one."""

    def __init__(self) -> None:
        self.byte_seconds = ByteSeconds()
        self._limits: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self.over: set[str] = set()
        """Tenants above their limit."""

    def limit(self, tenant: str, max_bytes: int | None) -> bool:
        """Sets the tenant's limit; None: it has none. Whether it was another."""
        if self._limits.get(tenant) == max_bytes:
            return False
        if max_bytes is None:
            self._limits.pop(tenant, None)
        else:
            self._limits[tenant] = max_bytes
        self._mark(tenant)
        return True

    def add(self, tenant: str, num_bytes: int) -> None:
        """The tenant holds so many bytes more, or less where it is negative."""
        held = self._held.get(tenant, 0) + num_bytes
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)
        self.byte_seconds.add(tenant, num_bytes)
        self._mark(tenant)

    def excess(self, tenant: str, num_bytes: int) -> int:
        """Bytes that the tenant would be above its limit with so many more; 0 where it wouldn't."""
        limit = self._limits.get(tenant)
        return 0 if limit is None else max(0, self._held.get(tenant, 0) + num_bytes - limit)

    def check(self, held: Mapping[str, int]) -> None:
        """Raises AssertionError unless the tenants hold exactly these bytes."""
        assert self._held == dict(held), (self._held, held)
        over = {t for t, limit in self._limits.items() if self._held.get(t, 0) > limit}
        assert self.over == over

    def _mark(self, tenant: str) -> None:
        if self.excess(tenant, 0):
            self.over.add(tenant)
        else:
            self.over.discard(tenant)
