"""Which tenants a replica has been busy for of late, from what its core tells. Pure."""

from __future__ import annotations

from typing import Any

from engine.core_stats import CoreStats, Measures
from engine.histogram import Counts
from engine.tenant_load import TenantLoad
from engine.usage import TenantUsage

KEPT = 10
"""Messages of the core, one a second: a tenant without requests is shown for so long."""


class Activity:
    """Tenants that have requests, or were served within `KEPT` messages."""

    def __init__(self) -> None:
        self._number = 0
        self._seen: dict[str, int] = {}
        self._usage: dict[str, TenantUsage] = {}
        self._loads: dict[str, TenantLoad] = {}
        self._stalls: Counts | None = None

    def told(self) -> dict[str, Any]:
        """Plain values. stalls: how many, and their seconds in all, since the core's start; None
        where nothing is measured."""
        stalls = self._stalls and {"num": self._stalls.num, "seconds": self._stalls.total}
        return {"tenants": self.tenants(), "stalls": stalls}

    def heard(self, stats: CoreStats, measures: Measures | None = None) -> None:
        self._number += 1
        self._stalls = self._stalls if measures is None else measures.stall_s
        self._loads = {load.tenant: load for load in stats.tenants}
        served = [used.tenant for used in stats.usage if self._was_served(used)]
        self._usage.update({used.tenant: used for used in stats.usage})
        self._seen.update(dict.fromkeys((*self._loads, *served), self._number))
        for tenant in [t for t, seen in self._seen.items() if seen <= self._number - KEPT]:
            del self._seen[tenant]

    def tenants(self) -> list[dict[str, Any]]:
        """Plain values. tokens: prompt tokens computed and output, since the core's start."""
        return [self._row(tenant) for tenant in self._seen]

    def _was_served(self, used: TenantUsage) -> bool:
        """Since it was told of before: that its adapters lie here is told of it, too."""
        before = self._usage.get(used.tenant) or TenantUsage(used.tenant)
        return _counts(used) != _counts(before)

    def _row(self, tenant: str) -> dict[str, Any]:
        load = self._loads.get(tenant) or TenantLoad(tenant, 1.0, 0, 0, 0.0)
        used = self._usage.get(tenant) or TenantUsage(tenant)
        return {
            "id": tenant,
            "weight": load.weight,
            "running": load.num_running,
            "waiting": load.num_waiting,
            "lag": load.lag,
            "tokens": used.prompt_tokens - used.cached_tokens + used.output_tokens,
        }


def _counts(used: TenantUsage) -> tuple[int, int, int]:
    return used.num_requests, used.prompt_tokens, used.output_tokens
