"""Makes a PEFT adapter's files a version of a tenant's adapter: checked, stored, registered.

All or nothing: a name changes its meaning in one compare-and-set, after every object of the new
version is stored. What fails before that leaves at most objects that no name points at, and those
the sweep removes.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

from deployments.changes.adapters import Adapters
from deployments.changes.placing import Placing
from deployments.changes.tenants import no_tenant
from deployments.control.claims import Claims
from deployments.control.judge import Candidate, Judge
from deployments.control.publish_order import PublishOrder
from deployments.control.sidecars import Sidecars
from deployments.control.sources import Sources
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord, check_name, tenant_key
from deployments.registry.registry import Registry
from deployments.registry.version_record import VersionRecord
from engine.adapters.store import (
    CONFIG,
    MANIFEST,
    TENSORS,
    ObjectMissing,
    ObjectStore,
    object_prefix,
)
from engine.types import AdapterRef


class Publisher:
    """Blocking; an event loop calls it from a thread. `clock` gives Unix seconds."""

    def __init__(
        self,
        registry: Registry,
        store: ObjectStore,
        judge: Judge,
        sources: Sources,
        adapters: Adapters,
        claims: Claims,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._store = store
        self._judge = judge
        self._sources = sources
        self._adapters = adapters
        self._sidecars = Sidecars(store)
        self._claims = claims
        self._clock = clock
        self._adding = threading.Lock()

    def publish(self, order: PublishOrder, placing: Placing | None = None) -> AdapterRecord:
        """`stage`, then `register`."""
        return self.register(self.stage(order), placing or Placing())

    def stage(self, order: PublishOrder) -> VersionRecord:
        """Check the files and store them; no name stands for them yet.

        Of bytes that the adapter has already, nothing is stored anew unless it was damaged, and the
        version keeps what is known of it. Raises InvalidRequest, NotFound (tenant or source),
        AdapterRejected, PermissionDenied (quota), TooLarge, AdapterUnavailable.
        """
        tenant = self._tenant(order)
        try:
            with self._sources.files(order.source, order.tenant) as files:
                candidate = self._judge.read(files, order.base, tenant)
            with tempfile.TemporaryDirectory(prefix="loraplex-") as scratch:
                # The tensors that count, written anew: what was checked is what is stored.
                path = Path(scratch) / TENSORS
                save_file(candidate.tensors, path)
                return self._store_once(order, candidate, path, tenant)
        finally:
            self._sources.drop(order.source, order.tenant)

    def register(self, version: VersionRecord, placing: Placing) -> AdapterRecord:
        """Make a staged version one of its adapter's, under the name that `placing` gives.

        Raises InvalidRequest, NotFound, Conflict, PermissionDenied, Unavailable.
        """
        tenant = self._tenant(version.ref)
        # One at a time, so that two together don't pass a quota that holds each alone.
        with self._claims.of(_prefix(version.ref)), self._adding:
            return self._adapters.add(version, placing, tenant)

    def _tenant(self, what: PublishOrder | AdapterRef) -> TenantRecord:
        check_name(what.name, "adapter")
        entry = self._registry.get(tenant_key(check_name(what.tenant, "tenant")))
        if entry is None:
            raise no_tenant(what.tenant)
        return TenantRecord.from_value(entry.value)

    def _store_once(
        self, order: PublishOrder, candidate: Candidate, tensors: Path, tenant: TenantRecord
    ) -> VersionRecord:
        version = self._version(order, candidate, tensors.stat().st_size)
        with self._claims.of(_prefix(version.ref)):
            record = self._adapters.find(order.tenant, order.name)
            known = None if record is None else record.version(version.ref.digest)
            if known is not None and known.live and known.ref == version.ref:
                version = known
                if self._is_whole(version.ref, candidate, tensors):
                    return version
            else:
                self._adapters.check_quota(tenant, version.ref)
            self._put(version, candidate, tensors)
        return version

    def _version(self, order: PublishOrder, candidate: Candidate, num_bytes: int) -> VersionRecord:
        digest = candidate.manifest.digest
        ref = AdapterRef(
            tenant=order.tenant,
            name=order.name,
            digest=digest,
            base_revision=self._judge.base.revision,
            ranks=candidate.found.ranks,
            num_elements=candidate.found.layout.num_elements,
            num_bytes=num_bytes,
            uri=f"{self._store.url}/{object_prefix(order.tenant, digest)}",
        )
        return VersionRecord(
            ref=ref,
            published_s=self._clock(),
            by=order.by,
            base=candidate.asserted_base or candidate.config.base,
            asserted_by=order.by if candidate.asserted_base else None,
            modules=candidate.found.kinds,
            num_modules=len(candidate.found.modules),
            warnings=candidate.warnings,
        )

    def _put(self, version: VersionRecord, candidate: Candidate, tensors: Path) -> None:
        """The sidecar first: it tells the sweep how young the rest is. The manifest last: with it
        the version is there."""
        prefix = _prefix(version.ref)
        self._sidecars.note_stored(version, self._clock())
        self._store.put(f"{prefix}/{TENSORS}", tensors)
        self._store.put(f"{prefix}/{CONFIG}", candidate.config_bytes)
        self._store.put(f"{prefix}/{MANIFEST}", candidate.manifest.to_bytes())

    def _is_whole(self, ref: AdapterRef, candidate: Candidate, tensors: Path) -> bool:
        """Whether the store has all of the version, undamaged: publishing again mends it. What has
        another size is not read, and nothing is kept of what is."""
        prefix = _prefix(ref)
        stored = f"{prefix}/{TENSORS}"
        try:
            return (
                self._store.size(f"{prefix}/{CONFIG}") is not None
                and self._store.size(stored) == tensors.stat().st_size
                and b"".join(self._store.read(f"{prefix}/{MANIFEST}"))
                == candidate.manifest.to_bytes()
                and self._sha256(stored) == _file_sha256(tensors)
            )
        except ObjectMissing:
            return False

    def _sha256(self, key: str) -> str:
        digest = hashlib.sha256()
        for piece in self._store.read(key):
            digest.update(piece)
        return digest.hexdigest()


def _prefix(ref: AdapterRef) -> str:
    return object_prefix(ref.tenant, ref.digest)


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
