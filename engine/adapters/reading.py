"""Reads the weights of a version, each tensor once: hashed, and turned into a torch tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.adapters.digest import Manifest, digest
from engine.adapters.parts import ModuleParts, check_modules, group_parts, module_shape
from engine.adapters.store import AdapterCorrupt
from engine.adapters.tensorfile import TensorFile
from engine.adapters.weights import Adapter, ModuleWeights
from engine.model.modules import ModuleTable

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def read_adapter(
    file: TensorFile,
    modules: Mapping[str, ModuleParts],
    scales: Mapping[str, float],
    table: ModuleTable,
    on_tensor: Callable[[str, str, Tensor], None],
) -> Adapter:
    """Read `modules`, whose shapes were checked. `on_tensor(name, sha256, tensor)` sees each."""

    def read(name: str) -> Tensor:
        data = file.read(name)
        info = file.tensors[name]
        tensor = torch.frombuffer(data, dtype=TORCH_DTYPES[info.dtype]).view(info.shape)
        on_tensor(name, digest(data), tensor)
        return tensor

    known = table.by_name()
    weights = {}
    for module, parts in modules.items():
        tensors = {which: read(name) for which, name in parts.names.items()}
        weights[known[module].id] = ModuleWeights(
            tensors["A"], tensors["B"], scales[module], tensors.get("bias")
        )
    return Adapter(weights, table)


def read_version(file: TensorFile, manifest: Manifest, table: ModuleTable) -> Adapter:
    """Read a stored version and verify every byte against its manifest.

    Raises AdapterCorrupt where file and manifest differ, AdapterRejected where the version doesn't
    fit this base, TensorFileError and OSError from the file.
    """
    described = {n: (t.dtype, t.shape) for n, t in manifest.tensors.items()}
    if {n: (t.dtype, t.shape) for n, t in file.tensors.items()} != described:
        raise AdapterCorrupt("The stored tensors are not those of the manifest.")
    modules, others = group_parts(file.tensors)
    if others or set(modules) != set(manifest.modules):
        raise AdapterCorrupt("The manifest's modules are not those of its tensors.")
    check_modules(modules, table)
    known = table.by_name()
    for name, parts in modules.items():
        stated = manifest.modules[name]
        module_shape(known[name], parts, file.tensors, stated.rank, stated.scale)

    def verify(name: str, sha256: str, _tensor: Tensor) -> None:
        if sha256 != manifest.tensors[name].sha256:
            raise AdapterCorrupt(
                f"The stored bytes of {name} are not those that were published. Publish it again."
            )

    scales = {name: module.scale for name, module in manifest.modules.items()}
    return read_adapter(file, modules, scales, table, verify)
