"""Decides whether an adapter's files can be served as they are, and what is stored of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deployments.control.added_tokens import TokenId, check_tokens
from deployments.control.import_folder import AdapterFiles
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
    token_id  of its tokenizer
    """

    name: str
    accepts: frozenset[str]
    revision: str
    table: ModuleTable
    weights: BaseWeights
    token_id: TokenId


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
        other = self._check_base(config, base)
        check_tokens(files.tokenizer, self.base.token_id)
        try:
            with TensorFile(files.tensors) as file:
                candidate = self._judge(config, config_bytes, file, tenant)
        except TensorFileError as error:
            raise AdapterRejected(f"{TENSORS} can't be read: {error}.") from error
        except OSError as error:
            raise InvalidRequest(
                f"{TENSORS} can't be read: {error.strerror}.", param="folder"
            ) from error
        if not other:
            return candidate
        warnings = _bounded([*candidate.warnings, f"it {other}: published on its publisher's word"])
        return replace(candidate, asserted_base=base, warnings=warnings)

    def _check_base(self, config: PeftConfig, base: str | None) -> str:
        """How the config's base is another than the one served, where `base` says that it isn't."""
        if base is not None and base not in self.base.accepts:
            raise InvalidRequest(
                f"This service runs {self.base.name!r}, not {base[:200]!r}.", param="base"
            )
        other = _other_base(config, self.base)
        if other and base is None:
            raise AdapterRejected(
                f"This adapter {other}. If they are the same, publish it with --base"
                f" {self.base.name}.",
                code="adapter_wrong_base",
                param="base",
            )
        return other

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
        untrained = self._check_biases(config, found)
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
        warnings = _bounded([*found.warnings, *untrained, *self._try(adapter, found)])
        modules = {n: ManifestModule(s.rank, s.scale) for n, s in found.shapes.items()}
        manifest = Manifest(modules, entries)
        return Candidate(config, config_bytes, found, manifest, tensors, warnings)

    def _check_biases(self, config: PeftConfig, found: Inspection) -> list[str]:
        """What PEFT trains it also saves: a file without it is not all of the adapter. Warnings."""
        if config.bias == "none":
            return []
        trained = self.base.weights.biases()
        if config.bias == "lora_only":
            trained &= {f"{module}.bias" for module in found.modules}
        if missing := sorted(trained - set(found.copies.values())):
            raise AdapterRejected(
                f"The config's bias is {config.bias!r}, which trains {missing[0]} of the base, but"
                " the file holds no such tensor: what was trained is not all there, and biases of"
                " the shared base are every tenant's. Retrain with bias 'none', or merge the"
                " adapter; if no bias was trained, set bias to 'none' in the config.",
                code="adapter_incomplete",
                param="bias",
            )
        return [] if trained else [f"bias is {config.bias!r}, but the base has none there to train"]

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


def _other_base(config: PeftConfig, base: ServedBase) -> str:
    """How the base that a config names differs from the one that is served; "": not at all."""
    if config.base not in base.accepts:
        named = f"was trained on {config.base[:200]!r}" if config.base else "names no base"
        return f"{named}, but {base.name!r} is served"
    if config.revision and config.revision != base.revision:
        return (
            f"was trained on revision {config.revision[:80]!r} of {config.base[:200]!r}, but"
            f" revision {base.revision[:80]!r} is served"
        )
    return ""


def _bounded(warnings: list[str]) -> tuple[str, ...]:
    """What fits a record."""
    kept = [w[:MAX_WARNING_CHARS] for w in warnings[:MAX_WARNINGS]]
    more = len(warnings) - len(kept)
    return (*kept, f"and {more} more warnings") if more else tuple(kept)
