"""Gathers what tenants have used from the replicas, and keeps it in the registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from deployments.control.usage_ledger import GONE, USAGE, UsageLedger
from deployments.ingress.replicas import Replicas
from deployments.registry.registry import Registry
from engine.errors import LoraplexError

logger = logging.getLogger(__name__)
T = TypeVar("T")
GATHER_S = 2.0
FRESH_S = 1.0
"""So old may an answer be: however many ask, replicas are asked no more often."""
SAVE_S = 10.0
TIMEOUT_S = 2.0


class UsageKeeper:
    """replicas: None: there are none. clock: seconds, monotonic.

    Only one of these may write to a registry.
    """

    def __init__(
        self, replicas: Replicas | None, registry: Registry, clock: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._registry = registry
        self._clock = clock
        self._ledger = UsageLedger()
        self._is_loaded = False
        self._saved_s = clock()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._gathered_s: float | None = None
        self._gathering: asyncio.Task[None] | None = None

    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> dict[str, Any]:
        """Of these tenants, or of all behind `after`, `limit` at most: as of about a second ago.
        Raises Unavailable where the registry can't be read, and has not been yet."""
        if self._gathered_s is None or self._clock() - self._gathered_s >= FRESH_S:
            await self.gather()
        known = [t for t in self._ledger.tenants() if t > after] if tenants is None else tenants
        data = [{"tenant": t, **self._ledger.total(t)} for t in known[:limit]]
        return {"data": data, "has_more": len(known) > limit}

    async def gather(self) -> None:
        """What no replica tells stays as it is. All who wait for it share one, which none of them
        ends by going. Raises Unavailable as `usage` does."""
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._gather())
            self._gathering.add_done_callback(self._gathering_ended)
        await asyncio.shield(self._gathering)

    async def save(self) -> None:
        """Raises Unavailable; then all is written the next time."""
        if not self._is_loaded:
            return
        self._saved_s = self._clock()
        past, gone = self._ledger.fold(self._saved_s)
        records = self._ledger.unsaved()
        try:
            await self._work(lambda: self._write({**records, **past}, gone))
        except BaseException:
            self._ledger.unsave(records)
            raise
        self._ledger.kept(past, gone)

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

    async def _gather(self) -> None:
        if not self._is_loaded:
            self._ledger.load(await self._work(self._read))
            self._is_loaded = True
        if self._replicas is None:
            return
        try:
            answers = await self._replicas.tell("gather_usage", self._ledger.order(), TIMEOUT_S)
        except LoraplexError as error:
            logger.info("usage: %s", error.message)
        else:
            self._ledger.read(answers, self._clock())
        self._gathered_s = self._clock()

    def _gathering_ended(self, task: asyncio.Task[None]) -> None:
        self._gathering = None
        if not task.cancelled():
            task.exception()  # seen, even where nobody waits any more

    async def _work(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _read(self) -> list[tuple[str, Mapping[str, Any]]]:
        entries = (e for kind in (USAGE, GONE) for e in self._registry.list(kind).entries)
        return [(e.key, e.value) for e in entries]

    def _write(self, records: Mapping[str, Mapping[str, Any]], gone: list[str]) -> None:
        for key, value in records.items():
            self._registry.put(key, value, None)
        for key in gone:
            self._registry.delete(key, None)
