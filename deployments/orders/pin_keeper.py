"""Keeps the replicas' pins as the registry has them: pushed at each change, and again every few
seconds, so that a replica that has just started, or took another slot, learns of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from deployments.changes.pins import Pins
from deployments.ingress.catalog import Catalog
from deployments.ingress.replicas import Replicas
from deployments.orders.tier_orders import SlotPin, pins_order
from engine.errors import Conflict, LoraplexError, NotFound, Unavailable
from router.owners import owners

logger = logging.getLogger(__name__)
PUSH_S = 5.0
"""How long a replica that has just started may not know its pins."""
TIMEOUT_S = 3.0


@dataclass(slots=True, eq=False)
class PinKeeper:
    """vnodes: the router's. Every ingress has one; the same pins pushed twice change nothing. One
    push at a time, so that the last to arrive was the last to be read."""

    catalog: Catalog
    pins: Pins
    replicas: Replicas
    vnodes: int
    _may_hold: bool = field(default=True, init=False)  # the replicas, of an earlier ingress
    _pushing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def push(self) -> None:
        """Raises Unavailable where the registry or the replicas can't be reached."""
        async with self._pushing:
            await self._push()

    async def _push(self) -> None:
        records = await asyncio.to_thread(self.pins.all)
        if not records and not self._may_hold:
            return
        slots = slots_of(await self.replicas.statuses(TIMEOUT_S))
        placed: list[SlotPin] = []
        for record in records:
            adapter = self.catalog.adapter(record.tenant, record.name)
            if adapter is None or adapter.ref is None:
                continue  # retired: nothing to keep until the name stands for a version again
            where = owners(slots, adapter.ref.ring_key, record.replicas, self.vnodes)
            placed.append(SlotPin(adapter.ref, record.on_device, where))
        await self.replicas.tell("set_pins", pins_order(placed), TIMEOUT_S)
        self._may_hold = bool(records)

    async def forget(self, tenant: str, name: str) -> None:
        """The adapter is retired: its pin, if it has one, ends. Raises Unavailable."""
        try:
            await asyncio.to_thread(self.pins.unpin, tenant, name)
        except NotFound:
            return
        except (Conflict, Unavailable) as error:
            logger.warning("%s/%s keeps its pin: %s", tenant, name, error.message)
            raise Unavailable(
                "It is retired, but its pin could not be ended. Retire it once more.",
                code="pin_stays",
                retry_after_s=1.0,
            ) from None
        await self.push_now()

    async def push_now(self) -> None:
        """The registry has a change: replicas that can't be told now are told by `run`."""
        with suppress(Unavailable):
            await self.push()

    async def run(self) -> None:
        """Push for ever."""
        while True:
            try:
                await self.push()
            except LoraplexError as error:
                logger.info("pins: %s", error.message)
            except Exception:
                logger.exception("pins can't be pushed")
            await asyncio.sleep(PUSH_S)


def slots_of(statuses: Sequence[Mapping[str, Any]]) -> list[int]:
    """The ranks of the replicas that have said so."""
    return sorted({s["slot"] for s in statuses if isinstance(s.get("slot"), int)})
