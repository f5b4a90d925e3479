"""The tensors of an adapter file by module, and the exact shapes that they must have.

Standard library only: a header is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.adapters.layout import ModuleShape
from engine.adapters.naming import lora_part, prefixed, tensor_name
from engine.adapters.tensorfile import TensorInfo
from engine.errors import AdapterRejected
from engine.model.modules import Module, ModuleTable

DTYPES = ("F64", "F32", "F16", "BF16")
ZERO3 = "DeepSpeed ZeRO-3 saves such files unless the weights are gathered first."
MAX_SCALE = 3.4028234663852886e38
"""The largest float32: the adapter table holds scales in that width."""


@dataclass(frozen=True, slots=True)
class ModuleParts:
    """Names of one module's tensors in the file, by "A", "B" and "bias"."""

    names: Mapping[str, str]
    embedding: bool

    def usual(self, module: str) -> dict[str, str]:
        """By the names in the file, those that PEFT gives them: a version is stored by these."""
        return {
            name: tensor_name(module, which, embedding=self.embedding)
            for which, name in self.names.items()
        }


def group_parts(names: Iterable[str]) -> tuple[dict[str, ModuleParts], list[str]]:
    """LoRA tensors by module path, and the names that are none, all as they are in the file.

    Raises AdapterRejected where two tensors claim one part.
    """
    modules: dict[tuple[str, bool], dict[str, str]] = {}
    others: list[str] = []
    for name, usual in sorted(prefixed(names).items()):
        part = lora_part(usual)
        if part is None:
            others.append(name)
            continue
        parts = modules.setdefault((part.module, part.embedding), {})
        if part.which in parts:
            raise AdapterRejected(f"{parts[part.which]} and {name} are the same weight.")
        parts[part.which] = name
    grouped: dict[str, ModuleParts] = {}
    for (module, embedding), parts in modules.items():
        if module in grouped:
            raise AdapterRejected(f"{module} has both linear and embedding LoRA weights.")
        grouped[module] = ModuleParts(parts, embedding)
    return grouped, others


def check_modules(modules: Mapping[str, ModuleParts], table: ModuleTable) -> None:
    """Raises AdapterRejected unless the base has every module, of that kind."""
    known = table.by_name()
    unknown = sorted(set(modules) - set(known))
    if unknown:
        found = min(modules[unknown[0]].names.values())
        wanted = tensor_name(table.modules[0].name, "A", embedding=False)
        raise AdapterRejected(
            f"{len(unknown)} of its {len(modules)} modules are not in this base, such as {found!r};"
            f" names here look like {wanted!r}. Train on this base and save with PEFT, and split"
            " fused projections.",
            code="adapter_unknown_module",
        )
    for name, parts in modules.items():
        if parts.embedding != (known[name] == table.embed_tokens):
            raise AdapterRejected(f"{name} has LoRA weights of the wrong kind of layer.")


def module_shape(
    module: Module,
    parts: ModuleParts,
    tensors: Mapping[str, TensorInfo],
    rank: int,
    scale: float,
) -> ModuleShape:
    """The shape of one module's LoRA. Raises AdapterRejected, naming the tensor, unless all parts
    are there with a float dtype and exactly the shapes that `rank` and `module` ask for; and where
    `scale` is no finite float32."""
    if not abs(scale) <= MAX_SCALE:
        raise AdapterRejected(
            f"The scale {scale:g} of {module.name} is no 32-bit number. Mend lora_alpha, or"
            " alpha_pattern.",
            param="lora_alpha",
        )
    for which in ("A", "B"):
        if which not in parts.names:
            missing = tensor_name(module.name, which, embedding=parts.embedding)
            raise AdapterRejected(
                f"{missing} is missing: the file is incomplete. Save the adapter again.",
                code="adapter_incomplete",
                param=missing,
            )
    wanted = {
        "A": (rank, module.in_features),
        "B": (module.out_features, rank),
        "bias": (module.out_features,),
    }
    for which, name in parts.names.items():
        _check_tensor(name, tensors[name], wanted[which])
    return ModuleShape(rank, scale, "bias" in parts.names)


def _check_tensor(name: str, info: TensorInfo, wanted: tuple[int, ...]) -> None:
    if 0 in info.shape:
        raise AdapterRejected(
            f"{name} is empty (shape {list(info.shape)}). {ZERO3}",
            code="adapter_incomplete",
            param=name,
        )
    if info.dtype not in DTYPES:
        raise AdapterRejected(
            f"{name} is {info.dtype}. Save it as float32, float16 or bfloat16.", param=name
        )
    if info.shape != wanted:
        raise AdapterRejected(
            f"{name} has shape {list(info.shape)}, where this base and the config's rank need"
            f" {list(wanted)}.",
            code="adapter_wrong_shape",
            param=name,
        )
