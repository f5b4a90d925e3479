"""Makes the registry's adapters anew from what the object store says of them.

For a registry that is lost without a backup. What only it knew stays lost: tenants and their keys
(the store has no secrets), aliases besides production, canaries, tombstones. Records that are there
stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from deployments.control.sidecars import Sidecar, Sidecars
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import MAX_HISTORY, PRODUCTION, Alias
from deployments.registry.records import tenant_key
from deployments.registry.registry import ABSENT, Registry
from engine.adapters.digest import digest
from engine.adapters.store import (
    DIGEST,
    MANIFEST,
    TENSORS,
    ObjectMissing,
    ObjectStore,
    object_prefix,
)
from engine.errors import Conflict
from engine.types import NAME


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Adapters as `tenant/name`, versions as `tenant/digest`.

    restored  with how many versions each
    kept      those that the registry has a record of already
    skipped   versions that can't be restored, and why
    tenants   those that adapters belong to and that must be created again
    """

    restored: tuple[tuple[str, int], ...]
    kept: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    tenants: tuple[str, ...]
    dry_run: bool


def rebuild(registry: Registry, store: ObjectStore, *, dry_run: bool = False) -> RebuildReport:
    """Blocking; reads one small manifest and sidecar of every version. Raises Unavailable."""
    found: dict[tuple[str, str], list[Sidecar]] = {}
    skipped = []
    for tenant, version in _versions(store):
        try:
            for sidecar in _sidecars(store, tenant, version):
                ref = sidecar.version.ref
                found.setdefault((tenant, ref.name), []).append(sidecar)
        except ValueError as error:
            skipped.append((f"{tenant}/{version}", str(error)))
    restored, kept = [], []
    for (tenant, name), sidecars in sorted(found.items()):
        record = _record(tenant, name, sidecars)
        try:
            if dry_run:
                if registry.get(record.key) is not None:
                    raise Conflict("It is there.")
            else:
                registry.put(record.key, record.to_value(), ABSENT)
        except Conflict:
            kept.append(record.model)
        else:
            restored.append((record.model, len(record.versions)))
    owners = {tenant for tenant, _ in found}
    missing = tuple(sorted(t for t in owners if registry.get(tenant_key(t)) is None))
    return RebuildReport(tuple(restored), tuple(kept), tuple(skipped), missing, dry_run)


def _versions(store: ObjectStore) -> list[tuple[str, str]]:
    """(tenant, digest) of all that lies where versions lie."""
    found = {tuple(key.split("/")[1:3]) for key in store.list("adapters/") if key.count("/") == 3}
    return sorted(
        (tenant, version)
        for tenant, version in found
        if NAME.fullmatch(tenant) and DIGEST.fullmatch(version)
    )


def _sidecars(store: ObjectStore, tenant: str, version: str) -> list[Sidecar]:
    """Those that fit a whole version. Raises ValueError with what is wrong with it."""
    prefix = object_prefix(tenant, version)
    try:
        manifest = b"".join(store.read(f"{prefix}/{MANIFEST}"))
    except ObjectMissing:
        raise ValueError("it has no manifest: it was never stored whole") from None
    if digest(manifest) != version:
        raise ValueError("its manifest is damaged")
    sidecars = [
        s
        for s in Sidecars(store).of(prefix)
        if (s.version.ref.tenant, s.version.ref.digest) == (tenant, version)
    ]
    if not sidecars:
        raise ValueError("no sidecar tells its name: it was retired, or publish its files again")
    size = store.size(f"{prefix}/{TENSORS}")
    if size != sidecars[0].version.ref.num_bytes:
        raise ValueError("its tensors are not whole")
    return sidecars


def _record(tenant: str, name: str, sidecars: Iterable[Sidecar]) -> AdapterRecord:
    """Production is what began to be it last; before that, in turn, what it can go back to."""
    by_time = sorted(sidecars, key=lambda s: s.version.published_s)
    versions = tuple(replace(s.version, retired_s=None, retired_by=None) for s in by_time)
    promoted = sorted(
        (s.promoted_s, s.version.ref.digest) for s in by_time if s.promoted_s is not None
    )
    if not promoted:
        return AdapterRecord(tenant, name, versions)
    digests = [version for _, version in promoted]
    alias = Alias(digests[-1], history=tuple(digests[:-1][-MAX_HISTORY:]))
    return AdapterRecord(tenant, name, versions, {PRODUCTION: alias})
