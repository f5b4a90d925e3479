"""A control by memory, and versions straight into registry and store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.changes.adapters import Adapters
from deployments.changes.placing import Placing
from deployments.control.gatekeeper import Gatekeeper
from deployments.control.publish_order import PublishOrder
from deployments.control.token_book import TokenBook
from deployments.control.usage_ledger import UsageLedger
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord
from deployments.registry.registry import Registry
from deployments.registry.version_record import VersionRecord
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, ObjectStore, object_prefix
from engine.errors import LoraplexError
from engine.types import AdapterRef

REVISION = "b" * 64


@dataclass
class MemoryControl:
    """Stages anything at once, or fails with `error`; stores small objects, so that a version is
    whole. `orders`: what it was asked. clock: of the
    tokens a minute. away: while set, tokens can't be had."""

    registry: Registry
    store: ObjectStore
    gatekeeper: Gatekeeper
    error: LoraplexError | None = None
    orders: list[PublishOrder] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    away: LoraplexError | None = None

    def __post_init__(self) -> None:
        self.tokens = TokenBook(self.clock)
        self.ledger = UsageLedger()

    async def lease_tokens(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.away is not None:
            raise self.away
        return self.tokens.lease(order)

    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> Mapping[str, Any]:
        """What `ledger` has."""
        if self.away is not None:
            raise self.away
        known = [t for t in self.ledger.tenants() if t > after] if tenants is None else tenants
        data = [{"tenant": t, **self.ledger.total(t)} for t in known[:limit]]
        return {"data": data, "has_more": len(known) > limit}

    async def stage(self, order: PublishOrder) -> VersionRecord:
        self.orders.append(order)
        if self.error is not None:
            raise self.error
        source = order.source
        manifest = (source.folder or source.prefix or str(source.upload)).encode()
        return put_version(self.store, order.tenant, order.name, manifest, by=order.by)

    async def register(self, version: VersionRecord, placing: Placing) -> AdapterRecord:
        adapters = Adapters(self.registry, self.store, keep_versions=10, clock=lambda: 8.0)
        return adapters.add(version, placing, TenantRecord(version.ref.tenant))

    async def observe(self, report: Mapping[str, Any]) -> dict[str, Any]:
        return self.gatekeeper.observe(report)

    async def trial(self, model: str) -> Mapping[str, Any] | None:
        known: Mapping[str, Any] | None = self.gatekeeper.trial(model)["trial"]
        return known

    async def sweep(self, dry_run: bool) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        removed = [{"prefix": "adapters/t1/x", "why": "orphan", "num_bytes": 5}]
        return {
            "removed": removed,
            "kept_young": 2,
            "unfinished": 0,
            "unreadable": [],
            "dry_run": dry_run,
            "grace_s": 660.0,
        }


def put_version(
    store: ObjectStore, tenant: str, name: str, manifest: bytes, *, by: str = "test"
) -> VersionRecord:
    """A whole version in the store, as far as promoting looks: its digest is that of `manifest`."""
    version = hashlib.sha256(manifest).hexdigest()
    prefix = object_prefix(tenant, version)
    parts = {TENSORS: b"t" * 4096, CONFIG: b"{}", MANIFEST: manifest}
    for part, data in parts.items():
        store.put(f"{prefix}/{part}", data)
    return version_record(tenant, name, version, by)


def version_record(tenant: str, name: str, digest: str, by: str = "test") -> VersionRecord:
    uri = f"adapters/{tenant}/{digest}"
    ref = AdapterRef(tenant, name, digest, REVISION, (8,), 1024, 4096, uri)
    return VersionRecord(ref, 7.0, by, "tiny", None, ("model.layers.*.q_proj",), 2)


def publish(
    registry: Registry, tenant: str, name: str, *, digest: str = "a" * 64, by: str = "test"
) -> AdapterRecord:
    """Put a version straight into the registry."""
    version = version_record(tenant, name, digest, by)
    entry = registry.get(f"adapter/{tenant}/{name}")
    before = AdapterRecord(tenant, name) if entry is None else AdapterRecord.from_value(entry.value)
    record = before.with_version(version).promoted(digest)
    registry.put(record.key, record.to_value(), None)
    return record
