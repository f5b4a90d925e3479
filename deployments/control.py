"""The control deployment: publishes and retires adapters.

One replica, with torch on the CPU. Its work blocks on disk and processor, so it runs in threads of
its own and the replica's event loop stays free. Answers are plain: a record, or {"error": ...}.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deployments.config import AppConfig
from deployments.import_folder import ImportFolder
from deployments.publisher import Publisher, PublishPolicy, ServedBase
from deployments.registry import open_registry
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.registry import Registry
from engine.adapters.basecopy import BaseWeights
from engine.adapters.store import open_store
from engine.adapters.weights import SERVING_DTYPES
from engine.config import EngineConfig
from engine.errors import LoraplexError
from engine.model.revision import base_revision
from engine.model.spec import BackboneSpec

MAX_PUBLISHES = 2
"""At once: each holds an adapter in memory."""

Answer = dict[str, Any]


class Control:
    """Undecorated, so that tests make one as it is. `clock` gives Unix seconds."""

    def __init__(self, config: AppConfig, clock: Callable[[], float] = time.time) -> None:
        engine = config.engine_config()
        spec = BackboneSpec.load(config.base.path)
        self._registry: Registry = open_registry(config.registry_url)
        base = ServedBase(
            name=config.base.name,
            accepts=frozenset({config.base.name, *config.base.accepts}),
            revision=base_revision(config.base.path, config.base.revision),
            table=spec.modules,
            weights=BaseWeights(config.base.path),
        )
        dtype = SERVING_DTYPES[engine.model.dtype]
        policy = PublishPolicy(
            dtype,
            max_adapter_bytes(engine, spec, dtype.itemsize),
            allowed_keys=config.allowed_adapter_keys,
        )
        self._publisher = Publisher(
            self._registry,
            open_store(config.store_url),
            base,
            policy,
            ImportFolder(config.import_root),
            clock,
        )
        self._threads = ThreadPoolExecutor(MAX_PUBLISHES, thread_name_prefix="control")

    async def publish(
        self, tenant: str, name: str, folder: str, by: str, base: str | None = None
    ) -> Answer:
        """See `Publisher.publish`. Answers the adapter's record."""
        return await self._answer(
            lambda: describe(
                self._publisher.publish(tenant=tenant, name=name, folder=folder, by=by, base=base)
            )
        )

    async def retire(self, tenant: str, name: str, by: str) -> Answer:
        """See `Publisher.retire`. Answers the adapter's record."""
        return await self._answer(
            lambda: describe(self._publisher.retire(tenant=tenant, name=name, by=by))
        )

    def close(self) -> None:
        self._threads.shutdown()
        self._registry.close()

    async def _answer(self, work: Callable[[], Answer]) -> Answer:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except LoraplexError as error:
            return {"error": dataclasses.asdict(error.info())}


def describe(record: AdapterRecord) -> Answer:
    """The record as it is stored, with its status."""
    return {**record.to_value(), "status": record.status}


def max_adapter_bytes(config: EngineConfig, spec: BackboneSpec, itemsize: int) -> int:
    """What a replica can hold of one adapter: its arena less the reserved page and the KV of one
    longest sequence, and no more than its host memory."""
    memory = config.memory
    page_bytes = spec.kv_bytes_per_token(itemsize) * memory.page_tokens
    reserve = 1 + -(-config.model.max_model_len // memory.page_tokens)
    arena = (memory.arena_bytes // page_bytes - reserve) * page_bytes
    return max(0, min(arena, memory.host_bytes))
