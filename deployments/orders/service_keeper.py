"""Carries what replicas have served from each to all (`replica.shared_service`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.ingress.replicas import Replicas
from deployments.replica.shared_service import SERVICE_VERSION
from engine.errors import LoraplexError

logger = logging.getLogger(__name__)
EXCHANGE_S = 1.0
TIMEOUT_S = 3.0


@dataclass(slots=True, eq=False)
class ServiceKeeper:
    """Every ingress has one."""

    replicas: Replicas
    _answers: Sequence[Mapping[str, Any]] = field(default=(), init=False)

    async def exchange(self) -> None:
        """Raises Unavailable where no replica answers: accounts are local until one does."""
        order = {"v": SERVICE_VERSION, "peers": list(self._answers)}
        self._answers = await self.replicas.tell("exchange_service", order, TIMEOUT_S)

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self.exchange()
            except LoraplexError as error:
                logger.info("service: %s", error.message)
            except Exception:
                logger.exception("service can't be exchanged")
            await asyncio.sleep(EXCHANGE_S)
