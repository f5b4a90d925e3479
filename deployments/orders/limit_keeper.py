"""Tells the replicas of tenants whose weight or limits have changed in the registry, until each has
heard it.

A tenant's requests bring them, too: this is for what already waits and runs.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from deployments.ingress.catalog import Catalog
from deployments.ingress.replicas import Replicas
from deployments.orders.tier_orders import limits_order
from engine.errors import LoraplexError
from engine.types import Tenant

logger = logging.getLogger(__name__)
RETRY_S = 1.0
TIMEOUT_S = 3.0


@dataclass(slots=True, eq=False)
class LimitKeeper:
    """Every ingress has one; the same limits told twice change nothing. retry_s: after an order
    that some replica didn't answer. One that has died holds up nobody, and whoever takes its place
    learns with each tenant's first request."""

    catalog: Catalog
    replicas: Replicas
    retry_s: float = RETRY_S

    async def run(self) -> None:
        """Tell for ever."""
        untold: dict[str, Tenant] = {}
        while True:
            if not untold:
                await self.catalog.tenants_changed.wait()
            untold |= self.catalog.take_changed_tenants()
            try:
                order = limits_order(untold.values())
                if await self.replicas.tell_all("set_limits", order, TIMEOUT_S):
                    untold.clear()
            except LoraplexError as error:
                logger.info("limits: %s", error.message)
            except Exception:
                logger.exception("limits can't be told")
            if untold:
                await asyncio.sleep(self.retry_s)
