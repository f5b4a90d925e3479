"""The control deployment: what needs torch or must be done once for the service.

It checks, stores and registers adapters, sweeps the object store, and keeps the canary gate. One
replica, on the CPU. Its work blocks on disk and processor, so it runs in threads of its own and the
replica's event loop stays free. Answers are plain: a value, or {"error": ...}.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deployments.changes.adapters import Adapters
from deployments.changes.placing import Placing
from deployments.config import AppConfig
from deployments.control.added_tokens import BaseTokens
from deployments.control.claims import Claims
from deployments.control.gatekeeper import Gatekeeper
from deployments.control.import_folder import ImportFolder
from deployments.control.judge import Judge, PublishPolicy, ServedBase
from deployments.control.publish_order import PublishOrder, Source
from deployments.control.publisher import Publisher
from deployments.control.sources import Sources
from deployments.control.sweep import Sweep
from deployments.control.token_book import TokenBook
from deployments.control.usage_keeper import UsageKeeper
from deployments.ingress.replicas import Replicas
from deployments.registry import open_registry
from deployments.registry.registry import Registry
from deployments.registry.version_record import VersionRecord
from deployments.telemetry.instrument import Instrument
from deployments.telemetry.instruments import CORE_DEATHS, GATE_ROLLBACKS, PUBLISHES, SWEEPS
from deployments.telemetry.metering import Metering
from engine.adapters.basecopy import BaseWeights
from engine.adapters.store import open_store
from engine.adapters.weights import SERVING_DTYPES
from engine.config import EngineConfig
from engine.errors import LoraplexError
from engine.model.revision import base_revision
from engine.model.spec import BackboneSpec

logger = logging.getLogger(__name__)
MAX_PUBLISHES = 2
"""At once: each holds an adapter in memory."""

Answer = dict[str, Any]


class Control:
    """Undecorated, so that tests make one as it is. `clock` gives Unix seconds.
    replicas: who are asked what tenants have used; None: nobody. metering: None counts nothing;
    its exports are the caller's."""

    def __init__(
        self,
        config: AppConfig,
        clock: Callable[[], float] = time.time,
        replicas: Replicas | None = None,
        metering: Metering | None = None,
    ) -> None:
        self._metering = metering
        if metering is not None:
            metering.tally.add(CORE_DEATHS, 0)  # so that the first one is an increase
        self._registry: Registry = open_registry(config.registry_url)
        self._tokens = TokenBook(time.monotonic)
        self._usage = UsageKeeper(replicas, self._registry, time.monotonic)
        store = open_store(config.store_url, config.store_options)
        imports = config.publish.import_store
        claims = Claims()
        adapters = Adapters(
            self._registry, store, keep_versions=config.publish.keep_versions, clock=clock
        )
        self._publisher = Publisher(
            self._registry,
            store,
            _judge(config),
            Sources(
                ImportFolder(config.import_root),
                store,
                open_store(imports, config.store_options) if imports else None,
                config.publish.max_upload_bytes,
            ),
            adapters,
            claims,
            clock,
        )
        self._sweep = Sweep(
            self._registry, store, adapters, claims, grace_s=config.grace_s, clock=clock
        )
        self._gatekeeper = Gatekeeper(config.gate, adapters, clock)
        self._sweep_period_s = config.publish.sweep_period_s
        self._threads = ThreadPoolExecutor(MAX_PUBLISHES, thread_name_prefix="control")
        # On its own, so that a long sweep takes no publisher's place.
        self._sweeper = ThreadPoolExecutor(1, thread_name_prefix="sweep")
        self._gate = ThreadPoolExecutor(1, thread_name_prefix="gate")

    async def stage(self, order: Mapping[str, Any]) -> Answer:
        """order: fields of `PublishOrder`. See `Publisher.stage`. Answers the version's record."""

        def work() -> Answer:
            source = Source(**order["source"])
            return self._publisher.stage(PublishOrder(**{**order, "source": source})).to_value()

        return self._counted(PUBLISHES, await self._answer(self._threads, work))

    async def register(self, version: Mapping[str, Any], placing: Mapping[str, Any]) -> Answer:
        """placing: the fields of `Placing`. See `Publisher.register`. Answers the adapter's
        record."""

        def work() -> Answer:
            record = VersionRecord.from_value(version)
            return self._publisher.register(record, Placing(**placing)).to_value()

        return await self._answer(self._threads, work)

    async def publish(
        self, tenant: str, name: str, folder: str, by: str, base: str | None = None
    ) -> Answer:
        """Stage a folder below the import root and make it production. The adapter's record."""
        order = PublishOrder(tenant, name, Source(folder=folder), by, base)
        answer = await self._answer(
            self._threads, lambda: self._publisher.publish(order).to_value()
        )
        return self._counted(PUBLISHES, answer)

    async def sweep(self, dry_run: bool = False) -> Answer:
        """See `Sweep.run`; while one runs, the next waits for it."""
        answer = await self._answer(
            self._sweeper, lambda: dataclasses.asdict(self._sweep.run(dry_run))
        )
        return self._counted(SWEEPS, answer)

    async def observe(self, report: Mapping[str, Any]) -> Answer:
        """See `Gatekeeper.observe`."""
        answer = await self._answer(self._gate, lambda: self._gatekeeper.observe(report))
        if self._metering is not None:
            self._metering.tally.add(GATE_ROLLBACKS, len(answer.get("ended", ())))
        return answer

    async def trial(self, model: str) -> Answer:
        """See `Gatekeeper.trial`."""
        return await self._answer(self._gate, lambda: self._gatekeeper.trial(model))

    def core_died(self, order: Mapping[str, Any]) -> Answer:
        """A replica's last word: its core has ended by itself. order: {"replica": its name}."""
        if self._metering is not None:
            self._metering.tally.add(CORE_DEATHS, 1)
        logger.error("the core of replica %s has died", order.get("replica", "?"))
        return {}

    def lease_tokens(self, order: Mapping[str, Any]) -> Answer:
        """See `TokenBook.lease`. Waits for nothing."""
        try:
            return self._tokens.lease(order)
        except LoraplexError as error:
            return {"error": dataclasses.asdict(error.info())}

    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> Answer:
        """See `UsageKeeper.usage`."""
        try:
            return await self._usage.usage(tenants, after, limit)
        except LoraplexError as error:
            return {"error": dataclasses.asdict(error.info())}

    async def run(self) -> None:
        """Gather and sweep for ever."""
        await asyncio.gather(self._usage.run(), self._sweep_for_ever())

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_period_s)
            answer = await self.sweep()
            if "error" in answer:
                logger.warning("sweep: %s", answer["error"]["message"])

    def close(self) -> None:
        self._threads.shutdown()
        self._sweeper.shutdown()
        self._gate.shutdown()
        self._usage.close()
        self._registry.close()

    def _counted(self, counter: Instrument, answer: Answer) -> Answer:
        if self._metering is not None:
            self._metering.tally.add(counter, 1, answer.get("error", {"code": "ok"})["code"])
        return answer

    async def _answer(self, threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
        try:
            # With what is known of the request, for the log lines of the thread.
            run = contextvars.copy_context().run
            return await asyncio.get_running_loop().run_in_executor(threads, run, work)
        except LoraplexError as error:
            return {"error": dataclasses.asdict(error.info())}


def _judge(config: AppConfig) -> Judge:
    engine = config.engine_config()
    spec = BackboneSpec.load(config.base.path)
    base = ServedBase(
        name=config.base.name,
        accepts=frozenset({config.base.name, *config.base.accepts}),
        revision=base_revision(config.base.path, config.base.revision),
        table=spec.modules,
        weights=BaseWeights(config.base.path),
        token_id=BaseTokens(config.base.path),
    )
    dtype = SERVING_DTYPES[engine.model.dtype]
    policy = PublishPolicy(
        dtype,
        max_adapter_bytes(engine, spec, dtype.itemsize),
        allowed_keys=config.allowed_adapter_keys,
        max_rank=config.publish.max_rank,
        allowed_ranks=config.publish.allowed_ranks,
    )
    return Judge(base, policy)


def max_adapter_bytes(config: EngineConfig, spec: BackboneSpec, itemsize: int) -> int:
    """What a replica can hold of one adapter: its arena less the reserved page and the KV of one
    longest sequence, and no more than its host memory; that alone where a GPU finds its arena."""
    memory = config.memory
    if memory.arena_bytes is None:
        return memory.host_bytes
    page_bytes = spec.kv_bytes_per_token(itemsize) * memory.page_tokens
    reserve = 1 + -(-config.model.max_model_len // memory.page_tokens)
    arena = (memory.arena_bytes // page_bytes - reserve) * page_bytes
    return max(0, min(arena, memory.host_bytes))
