"""Tells the replicas of tenants whose weight or limits have changed in the registry, until each has
heard it.

A tenant's requests bring them, too: this is for what already waits and runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from deployments.ingress.catalog import Catalog
from deployments.ingress.replicas import Replicas
from deployments.orders.tier_orders import TenantLimits, limits_order
from engine.errors import LoraplexError

logger = logging.getLogger(__name__)
RETRY_S = 1.0
TIMEOUT_S = 3.0


@dataclass(slots=True, eq=False)
class LimitKeeper:
    """Every ingress has one; the same limits told twice change nothing, and replicas leave alone
    what is older than they know. So nothing here waits for anything else: a change is told at once,
    however long a replica lets the one before wait.

    retry_s: from an order that some replica hasn't heard to the next. One that has died holds up
    nobody, and whoever takes its place learns with each tenant's first request.
    """

    catalog: Catalog
    replicas: Replicas
    retry_s: float = RETRY_S
    _unheard: dict[str, TenantLimits] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Tell for ever."""
        async with asyncio.TaskGroup() as telling:
            telling.create_task(self._retry())
            while True:
                await self.catalog.tenants_changed.wait()
                telling.create_task(self._tell(self.catalog.take_changed_tenants()))

    async def _retry(self) -> None:
        while True:
            await asyncio.sleep(self.retry_s)
            if self._unheard:
                await self._tell(dict(self._unheard))

    async def _tell(self, changed: Mapping[str, TenantLimits]) -> None:
        if await self._have_heard(changed):
            for name, limits in changed.items():
                if self._unheard.get(name) == limits:
                    del self._unheard[name]
            return
        for name, limits in changed.items():
            known = self._unheard.get(name)
            if known is None or known.rev < limits.rev:
                self._unheard[name] = limits

    async def _have_heard(self, changed: Mapping[str, TenantLimits]) -> bool:
        try:
            order = limits_order(changed.values())
            return await self.replicas.tell_all("set_limits", order, TIMEOUT_S)
        except LoraplexError as error:
            logger.info("limits: %s", error.message)
        except Exception:
            logger.exception("limits can't be told")
        return False
