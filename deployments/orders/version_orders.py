"""What the replicas are told of versions whose standing has changed: that they are retired, or that
whatever they failed of may be mended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from deployments.ingress.replicas import Replicas
from deployments.orders.tier_orders import retry_order
from engine.errors import Unavailable
from engine.types import AdapterRef

logger = logging.getLogger(__name__)
DROP_TIMEOUT_S = 5.0
RETRY_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class VersionOrders:
    replicas: Replicas

    async def drop(self, refs: Sequence[AdapterRef], now: bool) -> None:
        """They are retired. With `now` what runs on them ends, and the replicas also refuse what an
        ingress lets in before it knows: raises Unavailable where some can't be told."""
        if not refs:
            return
        try:
            await self.replicas.drop(refs, now, DROP_TIMEOUT_S)
        except Unavailable as error:
            if not now:  # copies that nobody uses go in time anyhow
                logger.warning("retired versions stay on replicas for a while: %s", error.message)
                return
            raise Unavailable(
                "It is retired, but not every replica could be told to end what runs on it. Retire"
                " it with --now once more.",
                code="not_told",
                retry_after_s=1.0,
            ) from None

    async def retry(self, refs: Sequence[AdapterRef]) -> None:
        """They may be served again, whatever they failed of before. Who can't be told tries again
        by itself in time."""
        if not refs:
            return
        try:
            await self.replicas.tell("retry", retry_order(refs), RETRY_TIMEOUT_S)
        except Unavailable as error:
            logger.info("replicas may remember failures for a while: %s", error.message)
