"""Gathers what tenants have used from the replicas, and keeps it in the registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deployments.control.usage_ledger import PAST, USAGE, UsageLedger
from deployments.ingress.generation import Model
from deployments.registry.registry import Registry
from engine.errors import LoraplexError

logger = logging.getLogger(__name__)
GATHER_S = 2.0
SAVE_S = 10.0
TIMEOUT_S = 2.0


class UsageKeeper:
    """replicas: None: there are none. clock: seconds, monotonic.

    Only one of these may write to a registry.
    """

    def __init__(
        self, replicas: Model | None, registry: Registry, clock: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._registry = registry
        self._clock = clock
        self._ledger = UsageLedger()
        self._is_loaded = False
        self._saved_s = clock()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._turn = asyncio.Lock()

    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> dict[str, Any]:
        """Of these tenants, or of all behind `after`, `limit` at most: as of about a second ago.
        Raises Unavailable where the registry can't be read, and has not been yet."""
        await self.gather()
        known = [t for t in self._ledger.tenants() if t > after] if tenants is None else tenants
        data = [{"tenant": t, **self._ledger.total(t)} for t in known[:limit]]
        return {"data": data, "has_more": len(known) > limit}

    async def gather(self) -> None:
        """What no replica tells stays as it is. Raises Unavailable as `usage` does."""
        async with self._turn:
            if not self._is_loaded:
                await self._work(self._load)
            if self._replicas is None:
                return
            try:
                answers = await self._replicas.tell("gather_usage", self._ledger.order(), TIMEOUT_S)
            except LoraplexError as error:
                logger.info("usage: %s", error.message)
                return
            self._ledger.read(answers, self._clock())

    async def save(self) -> None:
        """Raises Unavailable; then all is written the next time."""
        async with self._turn:
            if self._is_loaded:
                await self._work(self._save)

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(GATHER_S)
            try:
                await self.gather()
                if self._clock() - self._saved_s >= SAVE_S:
                    await self.save()
            except LoraplexError as error:
                logger.warning("usage: %s", error.message)
            except Exception:
                logger.exception("usage can't be gathered")

    def close(self) -> None:
        self._threads.shutdown()

    async def _work(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _load(self) -> None:
        records = [(e.key, e.value) for e in self._registry.list(USAGE).entries]
        stale = self._ledger.load(records)
        self._is_loaded = True
        for key in stale:
            self._registry.delete(key, None)

    def _save(self) -> None:
        self._saved_s = self._clock()
        try:
            for key, value in self._ledger.unsaved().items():
                self._registry.put(key, value, None)
            folded = self._ledger.fold(self._clock())
            if folded is not None:
                self._registry.put(USAGE + PAST, folded[0], None)
                for key in folded[1]:
                    self._registry.delete(key, None)
        except LoraplexError:
            self._ledger.unsave()
            raise
