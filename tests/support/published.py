"""A tiny service's keeping: a base, a registry, a store and a publisher over one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from deployments.changes.adapters import Adapters
from deployments.changes.placing import Placing
from deployments.control.claims import Claims
from deployments.control.import_folder import ImportFolder
from deployments.control.judge import Judge, PublishPolicy, ServedBase
from deployments.control.publish_order import PublishOrder, Source
from deployments.control.publisher import Publisher
from deployments.control.sources import Sources
from deployments.control.sweep import Sweep
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord
from deployments.registry.registry import ABSENT, Registry
from deployments.registry.sqlite import SqliteRegistry
from engine.adapters.basecopy import BaseWeights
from engine.adapters.folder_store import FolderStore
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, ObjectStore, object_prefix
from engine.errors import LoraplexError
from engine.model.spec import BackboneSpec
from tests.support.peft_folders import BASE_NAME, write_adapter, write_base

GRACE_S = 660.0


@dataclass
class Keeping:
    root: Path
    spec: BackboneSpec
    registry: SqliteRegistry
    store: FolderStore
    import_store: FolderStore
    publisher: Publisher
    adapters: Adapters
    sweep: Sweep
    now: list[float]

    @property
    def imports(self) -> Path:
        return self.root / "imports"

    def publish(self, tensors, config=None, *, tenant="acme", name="bot", **options):
        """Write a PEFT folder below the import root and publish it."""
        folder = f"{tenant}-{name}"
        write_adapter(self.imports / folder, tensors, config)
        return self.publish_folder(folder, tenant=tenant, name=name, **options)

    def publish_folder(
        self, folder, *, by="admin", base=None, placing=None, **where
    ) -> AdapterRecord:
        return self.publish_from(
            Source(folder=str(folder)), by=by, base=base, placing=placing, **where
        )

    def publish_from(
        self, source, *, tenant="acme", name="bot", by="admin", base=None, placing=None
    ) -> AdapterRecord:
        order = PublishOrder(tenant, name, source, by, base)
        return self.publisher.publish(order, placing or Placing())

    def record(self, tenant="acme", name="bot") -> AdapterRecord:
        """As the registry has it now; its invariants are checked."""
        record = self.adapters.get(tenant, name)
        record.check()
        return record


def make_keeping(
    root: Path,
    *,
    policy: PublishPolicy | None = None,
    keep_versions: int = 10,
    wrap_store: Callable[[FolderStore], ObjectStore] = lambda store: store,
    wrap_registry: Callable[[SqliteRegistry], Registry] = lambda registry: registry,
) -> Keeping:
    """Tenants acme and beta, nothing published. `now` is everybody's clock. What is there already
    below `root` is opened again."""
    (root / "imports").mkdir(exist_ok=True)
    fresh = not (root / "base").exists()
    spec = write_base(root / "base") if fresh else BackboneSpec.load(root / "base")
    registry = SqliteRegistry(root / "registry.db")
    for tenant in ("acme", "beta") if fresh else ():
        record = TenantRecord(tenant)
        registry.put(record.key, record.to_value(), ABSENT)
    store = FolderStore(root / "objects")
    import_store = FolderStore(root / "import-store")
    now = [100.0]
    base = ServedBase(
        BASE_NAME,
        frozenset({BASE_NAME, "tiny/llama-alias"}),
        "rev-1",
        spec.modules,
        BaseWeights(root / "base"),
        {"<s>": 1, "</s>": 2}.get,
    )
    judge = Judge(base, policy or PublishPolicy(torch.float32, 1 << 20))
    used_registry, used_store = wrap_registry(registry), wrap_store(store)
    sources = Sources(ImportFolder(root / "imports"), used_store, import_store, 1 << 24)

    def clock() -> float:
        return now[0]

    claims = Claims()
    adapters = Adapters(used_registry, used_store, keep_versions=keep_versions, clock=clock)
    publisher = Publisher(used_registry, used_store, judge, sources, adapters, claims, clock)
    sweep = Sweep(used_registry, used_store, adapters, claims, grace_s=GRACE_S, clock=clock)
    return Keeping(root, spec, registry, store, import_store, publisher, adapters, sweep, now)


def everything(keeping: Keeping):
    """All that a failed publish must leave as it was."""
    return keeping.registry.list("").entries, keeping.store.list("")


def refused(keeping: Keeping, error, *args, words=None, **options) -> LoraplexError:
    """Publishing raises `error`, and changes nothing."""
    before = everything(keeping)
    with pytest.raises(error, match=words) as raised:
        keeping.publish(*args, **options)
    assert everything(keeping) == before
    assert 400 <= raised.value.status < 500
    return raised.value


def stored(keeping: Keeping, ref):
    """The files of a version, by part."""
    return {
        part: keeping.store.local_path(f"{object_prefix(ref.tenant, ref.digest)}/{part}")
        for part in (TENSORS, CONFIG, MANIFEST)
    }
