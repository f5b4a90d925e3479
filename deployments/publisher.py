"""Makes a folder of PEFT files a version of a tenant's adapter: checked, stored, registered.

All or nothing: a name changes its meaning in one compare-and-set, after every object of the new
version is stored. What fails before that leaves at most an object that no name points at.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from deployments.import_folder import ImportFolder
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import adapter_key, check_name, tenant_key
from deployments.registry.registry import ABSENT, Registry
from deployments.registry.version_record import VersionRecord
from engine.adapters.basecopy import BaseWeights
from engine.adapters.digest import Manifest, ManifestModule, ManifestTensor
from engine.adapters.peft import PeftConfig, read_config
from engine.adapters.reading import read_adapter
from engine.adapters.store import (
    CONFIG,
    MANIFEST,
    TENSORS,
    ObjectMissing,
    ObjectStore,
    object_prefix,
)
from engine.adapters.tensorfile import TensorFile, TensorFileError
from engine.adapters.validate import Inspection, inspect
from engine.adapters.weights import Adapter, pack
from engine.errors import AdapterRejected, Conflict, InvalidRequest, NotFound
from engine.model.modules import ModuleTable
from engine.types import AdapterRef

MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ServedBase:
    """The base that adapters are published for.

    accepts   names that an adapter's config may give it, its own among them
    weights   to tell whether a full weight in an adapter's file only repeats the base
    """

    name: str
    accepts: frozenset[str]
    revision: str
    table: ModuleTable
    weights: BaseWeights


@dataclass(frozen=True, slots=True)
class PublishPolicy:
    """dtype of the service; the largest block that a replica can hold, in bytes of that dtype;
    unknown config keys that the operator vouches for."""

    dtype: torch.dtype
    max_adapter_bytes: int
    allowed_keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An adapter that passed, in memory. `tensors` by their name in the file."""

    config: PeftConfig
    config_bytes: bytes
    found: Inspection
    manifest: Manifest
    tensors: dict[str, Tensor]
    warnings: tuple[str, ...]


class Publisher:
    """Blocking; an event loop calls it from a thread. `clock` gives Unix seconds."""

    def __init__(
        self,
        registry: Registry,
        store: ObjectStore,
        base: ServedBase,
        policy: PublishPolicy,
        imports: ImportFolder,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._store = store
        self._base = base
        self._policy = policy
        self._imports = imports
        self._clock = clock

    def publish(
        self, *, tenant: str, name: str, folder: str, by: str, base: str | None = None
    ) -> AdapterRecord:
        """Make `folder`, below the import root, the current version of `tenant/name`.

        base  the caller's word that the adapter belongs to this base, whatever its config says
        by    who asks, for the record

        Identical bytes are no new version: where the name already stands for them nothing changes.
        Raises InvalidRequest, NotFound (tenant or folder), AdapterRejected, Conflict, Unavailable.
        """
        check_name(tenant, "tenant")
        check_name(name, "adapter")
        if self._registry.get(tenant_key(tenant)) is None:
            raise NotFound(f"Tenant {tenant!r} does not exist.", param="tenant")
        candidate, asserted = self._read(folder, base)
        with tempfile.TemporaryDirectory() as scratch:
            # The tensors that count, written anew: what was checked is what is stored.
            path = Path(scratch) / TENSORS
            save_file(candidate.tensors, path)
            ref = self._ref(tenant, name, candidate, path.stat().st_size)
            record = self._current(tenant, name)
            if record is not None and record.ref == ref and self._is_whole(ref, candidate, path):
                return record
            self._put(ref, candidate, path)
        version = VersionRecord(
            ref=ref,
            published_s=self._clock(),
            by=by,
            base=base if asserted and base else candidate.config.base,
            asserted_by=by if asserted else None,
            modules=candidate.found.kinds,
            num_modules=len(candidate.found.modules),
            warnings=candidate.warnings,
        )
        return self._register(version)

    def retire(self, *, tenant: str, name: str, by: str) -> AdapterRecord:
        """The name stands for nothing from now on; its versions stay as tombstones. Retiring twice
        is no error. Raises NotFound, Conflict, Unavailable."""
        check_name(tenant, "tenant")
        check_name(name, "adapter")

        def retired(record: AdapterRecord | None) -> AdapterRecord:
            if record is None:
                raise NotFound(f"Adapter '{tenant}/{name}' does not exist.", param="adapter")
            return record if record.status == "retired" else record.retired(self._clock(), by)

        return self._update(tenant, name, retired)

    # Reading and judging --------------------------------------------------------------------------
    def _read(self, folder: str, base: str | None) -> tuple[Candidate, bool]:
        """The adapter in `folder`, and whether its base had to be asserted."""
        files = self._imports.files(folder)
        config_bytes = files.config_bytes()
        config = read_config(config_bytes, allowed_keys=self._policy.allowed_keys)
        asserted = self._check_base(config, base)
        try:
            with TensorFile(files.tensors) as file:
                return self._judge(config, config_bytes, file), asserted
        except TensorFileError as error:
            raise AdapterRejected(f"{TENSORS} can't be read: {error}.") from error
        except OSError as error:
            raise InvalidRequest(
                f"{TENSORS} can't be read: {error.strerror}.", param="folder"
            ) from error

    def _check_base(self, config: PeftConfig, base: str | None) -> bool:
        if base is not None and base not in self._base.accepts:
            raise InvalidRequest(
                f"This service runs {self._base.name!r}, not {base[:200]!r}.", param="base"
            )
        if config.base in self._base.accepts:
            return False
        if base is None:
            named = f"was trained on {config.base[:200]!r}" if config.base else "names no base"
            raise AdapterRejected(
                f"This adapter {named}, but {self._base.name!r} is served. If they are the same,"
                f" publish it with --base {self._base.name}.",
                code="adapter_wrong_base",
                param="base",
            )
        return True

    def _judge(self, config: PeftConfig, config_bytes: bytes, file: TensorFile) -> Candidate:
        found = inspect(config, file.tensors, self._base.table)
        num_bytes = found.layout.num_elements * self._policy.dtype.itemsize
        if num_bytes > self._policy.max_adapter_bytes:
            raise AdapterRejected(
                f"This adapter takes {num_bytes} bytes; a replica has room for"
                f" {self._policy.max_adapter_bytes}. Train it with a lower rank or on fewer"
                " modules.",
                code="adapter_too_large",
            )
        for name, wanted in found.copies.items():
            if not self._base.weights.holds(wanted, file, name):
                raise AdapterRejected(
                    f"{name} replaces {wanted} of the shared base, which every tenant uses."
                    " Retrain without modules_to_save, new tokens or biases, or merge the adapter.",
                    code="adapter_full_weights",
                    param=name,
                )
        tensors: dict[str, Tensor] = {}
        entries: dict[str, ManifestTensor] = {}

        def keep(name: str, sha256: str, tensor: Tensor) -> None:
            tensors[name] = tensor
            entries[name] = ManifestTensor(
                file.tensors[name].dtype, file.tensors[name].shape, sha256
            )

        scales = {name: shape.scale for name, shape in found.shapes.items()}
        adapter = read_adapter(file, found.modules, scales, self._base.table, keep)
        warnings = (*found.warnings, *self._try(adapter, found))
        modules = {n: ManifestModule(s.rank, s.scale) for n, s in found.shapes.items()}
        manifest = Manifest(modules, entries)
        return Candidate(config, config_bytes, found, manifest, tensors, warnings)

    def _try(self, adapter: Adapter, found: Inspection) -> list[str]:
        """Pack it as a replica will, so that what can't be served shows now."""
        block = bytearray(found.layout.num_elements * self._policy.dtype.itemsize)
        pack(adapter, found.layout, self._policy.dtype, memoryview(block))
        return ["every B is zero: it answers as the base does"] if adapter.is_identity else []

    # Storing and registering ----------------------------------------------------------------------
    def _ref(self, tenant: str, name: str, candidate: Candidate, num_bytes: int) -> AdapterRef:
        digest = candidate.manifest.digest
        return AdapterRef(
            tenant=tenant,
            name=name,
            digest=digest,
            base_revision=self._base.revision,
            ranks=candidate.found.ranks,
            num_elements=candidate.found.layout.num_elements,
            num_bytes=num_bytes,
            uri=f"{self._store.url}/{object_prefix(tenant, digest)}",
        )

    def _put(self, ref: AdapterRef, candidate: Candidate, tensors: Path) -> None:
        prefix = object_prefix(ref.tenant, ref.digest)
        self._store.put(f"{prefix}/{TENSORS}", tensors)
        self._store.put(f"{prefix}/{CONFIG}", candidate.config_bytes)
        self._store.put(f"{prefix}/{MANIFEST}", candidate.manifest.to_bytes())

    def _is_whole(self, ref: AdapterRef, candidate: Candidate, tensors: Path) -> bool:
        """Whether the store has all of the version, undamaged: publishing again mends it."""
        prefix = object_prefix(ref.tenant, ref.digest)
        try:
            return (
                self._store.size(f"{prefix}/{CONFIG}") is not None
                and _sha256(self._store.read(f"{prefix}/{MANIFEST}"))
                == _sha256([candidate.manifest.to_bytes()])
                and _sha256(self._store.read(f"{prefix}/{TENSORS}"))
                == _sha256([tensors.read_bytes()])
            )
        except ObjectMissing:
            return False

    def _register(self, version: VersionRecord) -> AdapterRecord:
        tenant, name = version.ref.tenant, version.ref.name

        def updated(record: AdapterRecord | None) -> AdapterRecord:
            record = record or AdapterRecord(tenant, name)
            known = record.version(version.ref.digest)
            if known is None or known.ref != version.ref:
                return record.with_version(version).promoted(version.ref.digest)
            # The same version again: it keeps its history.
            back = dataclasses.replace(known, retired_s=None, retired_by=None)
            return record.with_version(back).promoted(back.ref.digest)

        return self._update(tenant, name, updated)

    def _current(self, tenant: str, name: str) -> AdapterRecord | None:
        entry = self._registry.get(adapter_key(tenant, name))
        return None if entry is None else AdapterRecord.from_value(entry.value)

    def _update(
        self, tenant: str, name: str, change: Callable[[AdapterRecord | None], AdapterRecord]
    ) -> AdapterRecord:
        """Apply `change` to the record as it is when it is written."""
        key = adapter_key(tenant, name)
        for _ in range(MAX_ATTEMPTS):
            entry = self._registry.get(key)
            record = None if entry is None else AdapterRecord.from_value(entry.value)
            changed = change(record)
            if changed == record:
                return changed
            try:
                self._registry.put(key, changed.to_value(), ABSENT if entry is None else entry.rev)
            except Conflict:
                continue
            return changed
        raise Conflict(f"Adapter '{tenant}/{name}' keeps changing. Try again.")


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
