"""A tiny service's keeping: a base, a registry, a store and a publisher over one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from deployments.import_folder import ImportFolder
from deployments.publisher import Publisher, PublishPolicy, ServedBase
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord
from deployments.registry.registry import ABSENT
from deployments.registry.sqlite import SqliteRegistry
from engine.adapters.basecopy import BaseWeights
from engine.adapters.folder_store import FolderStore
from engine.model.spec import BackboneSpec
from tests.support.peft_folders import BASE_NAME, write_adapter, write_base


@dataclass
class Keeping:
    root: Path
    spec: BackboneSpec
    registry: SqliteRegistry
    store: FolderStore
    publisher: Publisher
    now: list[float]

    @property
    def imports(self) -> Path:
        return self.root / "imports"

    def publish(self, tensors, config=None, *, tenant="acme", name="bot", **options):
        """Write a PEFT folder below the import root and publish it."""
        folder = f"{tenant}-{name}"
        write_adapter(self.imports / folder, tensors, config)
        return self.publish_folder(folder, tenant=tenant, name=name, **options)

    def publish_folder(self, folder, *, tenant="acme", name="bot", **options) -> AdapterRecord:
        return self.publisher.publish(
            **{"tenant": tenant, "name": name, "folder": str(folder), "by": "admin", **options}
        )


def make_keeping(
    root: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_adapter_bytes: int = 1 << 20,
    wrap_store: Callable[[FolderStore], FolderStore] = lambda store: store,
) -> Keeping:
    """Tenants acme and beta, nothing published. `now` is the publisher's clock."""
    spec = write_base(root / "base")
    (root / "imports").mkdir()
    registry = SqliteRegistry(root / "registry.db")
    for tenant in ("acme", "beta"):
        record = TenantRecord(tenant)
        registry.put(record.key, record.to_value(), ABSENT)
    store = wrap_store(FolderStore(root / "objects"))
    now = [100.0]
    publisher = Publisher(
        registry,
        store,
        ServedBase(
            BASE_NAME,
            frozenset({BASE_NAME, "tiny/llama-alias"}),
            "rev-1",
            spec.modules,
            BaseWeights(root / "base"),
        ),
        PublishPolicy(dtype, max_adapter_bytes),
        ImportFolder(root / "imports"),
        lambda: now[0],
    )
    return Keeping(root, spec, registry, store, publisher, now)
