"""Decides whether an adapter's files can be served as they are, and what is stored of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deployments.import_folder import AdapterFiles
from deployments.registry.records import TenantRecord
from engine.adapters.basecopy import BaseWeights
from engine.adapters.digest import Manifest, ManifestModule, ManifestTensor
from engine.adapters.peft import PeftConfig, read_config
from engine.adapters.reading import read_adapter
from engine.adapters.store import TENSORS
from engine.adapters.tensorfile import TensorFile, TensorFileError
from engine.adapters.validate import Inspection, inspect
from engine.adapters.weights import Adapter, pack
from engine.errors import AdapterRejected, InvalidRequest
from engine.model.modules import ModuleTable

MAX_WARNINGS = 32
MAX_WARNING_CHARS = 300


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
    """What the service takes of anybody; a tenant's record may narrow it.

    dtype              of the service
    max_adapter_bytes  the largest block that a replica can hold, in bytes of that dtype
    allowed_keys       unknown config keys that the operator vouches for
    max_rank, allowed_ranks  of every module; None and no ranks: any
    """

    dtype: torch.dtype
    max_adapter_bytes: int
    allowed_keys: frozenset[str] = frozenset()
    max_rank: int | None = None
    allowed_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An adapter that passed, in memory. `tensors` by the names that PEFT gives them.
    asserted_base: the base that its publisher had to vouch for."""

    config: PeftConfig
    config_bytes: bytes
    found: Inspection
    manifest: Manifest
    tensors: dict[str, Tensor]
    warnings: tuple[str, ...]
    asserted_base: str | None = None


class Judge:
    """Reads and checks; changes nothing."""

    def __init__(self, base: ServedBase, policy: PublishPolicy) -> None:
        self.base = base
        self._policy = policy

    def read(self, files: AdapterFiles, base: str | None, tenant: TenantRecord) -> Candidate:
        """The adapter in `files`. base: the caller's word, whatever the config says.

        Raises InvalidRequest, AdapterRejected.
        """
        config_bytes = files.config_bytes()
        config = read_config(config_bytes, allowed_keys=self._policy.allowed_keys)
        asserted = self._check_base(config, base)
        try:
            with TensorFile(files.tensors) as file:
                candidate = self._judge(config, config_bytes, file, tenant)
        except TensorFileError as error:
            raise AdapterRejected(f"{TENSORS} can't be read: {error}.") from error
        except OSError as error:
            raise InvalidRequest(
                f"{TENSORS} can't be read: {error.strerror}.", param="folder"
            ) from error
        return replace(candidate, asserted_base=base if asserted else None)

    def _check_base(self, config: PeftConfig, base: str | None) -> bool:
        if base is not None and base not in self.base.accepts:
            raise InvalidRequest(
                f"This service runs {self.base.name!r}, not {base[:200]!r}.", param="base"
            )
        if config.base in self.base.accepts:
            return False
        if base is None:
            named = f"was trained on {config.base[:200]!r}" if config.base else "names no base"
            raise AdapterRejected(
                f"This adapter {named}, but {self.base.name!r} is served. If they are the same,"
                f" publish it with --base {self.base.name}.",
                code="adapter_wrong_base",
                param="base",
            )
        return True

    def _judge(
        self, config: PeftConfig, config_bytes: bytes, file: TensorFile, tenant: TenantRecord
    ) -> Candidate:
        found = inspect(config, file.tensors, self.base.table)
        self._check_ranks(found.ranks, tenant)
        num_bytes = found.layout.num_elements * self._policy.dtype.itemsize
        if num_bytes > self._policy.max_adapter_bytes:
            raise AdapterRejected(
                f"This adapter takes {num_bytes} bytes; a replica has room for"
                f" {self._policy.max_adapter_bytes}. Train it with a lower rank or on fewer"
                " modules.",
                code="adapter_too_large",
            )
        for name, wanted in found.copies.items():
            if not self.base.weights.holds(wanted, file, name):
                raise AdapterRejected(
                    f"{name} replaces {wanted} of the shared base, which every tenant uses."
                    " Retrain without modules_to_save, new tokens or biases, or merge the adapter.",
                    code="adapter_full_weights",
                    param=name,
                )
        tensors: dict[str, Tensor] = {}
        entries: dict[str, ManifestTensor] = {}
        usual = {n: u for m, parts in found.modules.items() for n, u in parts.usual(m).items()}

        def keep(name: str, sha256: str, tensor: Tensor) -> None:
            tensors[usual[name]] = tensor
            entries[usual[name]] = ManifestTensor(
                file.tensors[name].dtype, file.tensors[name].shape, sha256
            )

        scales = {name: shape.scale for name, shape in found.shapes.items()}
        adapter = read_adapter(file, found.modules, scales, self.base.table, keep)
        warnings = _bounded([*found.warnings, *self._try(adapter, found)])
        modules = {n: ManifestModule(s.rank, s.scale) for n, s in found.shapes.items()}
        manifest = Manifest(modules, entries)
        return Candidate(config, config_bytes, found, manifest, tensors, warnings)

    def _check_ranks(self, ranks: tuple[int, ...], tenant: TenantRecord) -> None:
        for most in (self._policy.max_rank, tenant.max_rank):
            if most is not None and ranks[-1] > most:
                raise AdapterRejected(
                    f"Its largest rank is {ranks[-1]}; at most {most} is allowed. Train it with a"
                    " lower rank.",
                    code="adapter_rank",
                    param="r",
                )
        for allowed in (self._policy.allowed_ranks, tenant.allowed_ranks):
            others = sorted(set(ranks) - set(allowed))
            if allowed and others:
                raise AdapterRejected(
                    f"It has rank {others[0]}; allowed are {', '.join(map(str, sorted(allowed)))}."
                    " Train it with one of these.",
                    code="adapter_rank",
                    param="r",
                )

    def _try(self, adapter: Adapter, found: Inspection) -> list[str]:
        """Pack it as a replica will, so that what can't be served shows now."""
        block = bytearray(found.layout.num_elements * self._policy.dtype.itemsize)
        pack(adapter, found.layout, self._policy.dtype, memoryview(block))
        return ["every B is zero: it answers as the base does"] if adapter.is_identity else []


def _bounded(warnings: list[str]) -> tuple[str, ...]:
    """What fits a record."""
    kept = [w[:MAX_WARNING_CHARS] for w in warnings[:MAX_WARNINGS]]
    more = len(warnings) - len(kept)
    return (*kept, f"and {more} more warnings") if more else tuple(kept)
