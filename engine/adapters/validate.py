"""Decides whether an adapter can be served by this base exactly as it was trained.

From config and header alone, before any weight is read: every tensor is a part of a module, a copy
of the base (to be compared), or an error. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.adapters.layout import AdapterLayout, ModuleShape, layout
from engine.adapters.naming import PREFIX, base_name, prefixed, refusal
from engine.adapters.parts import (
    ZERO3,
    ModuleParts,
    check_modules,
    group_parts,
    module_shape,
)
from engine.adapters.peft import PeftConfig
from engine.adapters.targets import HEADS, Targets, resolve
from engine.adapters.tensorfile import TensorInfo
from engine.errors import AdapterRejected
from engine.model.modules import ModuleTable

UNUSUAL_SCALE = 64.0
NORMS = ("norm", "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")
"""Modules of every base here that take no LoRA; some trainers save them whole."""
MAX_UNUSED = 20
"""Patterns that a record names as unused; of more it says how many."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """An adapter that fits, as far as its header tells.

    modules  the tensors of each adapted module, by module path
    shapes   rank and scale, by module path
    copies   tensors that must equal a tensor of the base (by its name there), to be dropped
    """

    modules: Mapping[str, ModuleParts]
    shapes: Mapping[str, ModuleShape]
    layout: AdapterLayout
    copies: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({shape.rank for shape in self.shapes.values()}))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Module paths with the layer number replaced by `*`."""
        return tuple(sorted({re.sub(r"\.\d+\.", ".*.", name) for name in self.modules}))


def inspect(
    config: PeftConfig, tensors: Mapping[str, TensorInfo], table: ModuleTable
) -> Inspection:
    """Raises AdapterRejected, which names what is wrong and the remedy."""
    modules, others = group_parts(tensors)
    copies = _copies(others, tensors)
    if not modules:
        raise AdapterRejected(_nothing(tensors), code="adapter_empty")
    check_modules(modules, table)
    targets = resolve(config, [module.name for module in table.modules])
    _check_targets(config, targets, modules)
    known = table.by_name()
    shapes = {
        name: module_shape(
            known[name],
            parts,
            tensors,
            targets.modules[name].rank,
            targets.modules[name].scale,
        )
        for name, parts in modules.items()
    }
    _check_bias(config, modules)
    _check_saved(config, copies, table)
    return Inspection(
        modules,
        shapes,
        layout({known[name].id: shape for name, shape in shapes.items()}, table),
        copies,
        _warnings(config, targets, shapes, copies),
    )


def _copies(others: list[str], tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    """Tensors that are no LoRA weight, by the base's tensor each may be a copy of."""
    copies, usual = {}, prefixed(tensors)
    for name in others:
        as_saved = usual[name]
        replaces_base = as_saved.startswith(PREFIX) and as_saved.endswith((".weight", ".bias"))
        if not replaces_base or ".lora_" in name:
            raise AdapterRejected(f"{name}: {refusal(as_saved)}.", param=name)
        if 0 in tensors[name].shape:
            raise AdapterRejected(
                f"{name} is empty. {ZERO3}", code="adapter_incomplete", param=name
            )
        copies[name] = base_name(as_saved)
    return copies


def _check_saved(config: PeftConfig, copies: Mapping[str, str], table: ModuleTable) -> None:
    """What was trained whole must be in the file: a LoRA alone is another adapter."""
    present = {name.rpartition(".")[0] for name in copies.values()}
    if any(_ends_in(name, NORMS) for name in present):
        present |= set(NORMS)
    for saved in config.modules_to_save:
        named = [n for n in (*(m.name for m in table.modules), *NORMS) if _ends_in(n, (saved,))]
        if missing := [name for name in named if name not in present]:
            raise AdapterRejected(
                f"The config's modules_to_save names {missing[0]}, whose weight is not in the file:"
                " what was trained is not all there. Save the adapter again; or, if it was not"
                " trained, take it out of modules_to_save.",
                code="adapter_incomplete",
                param="modules_to_save",
            )


def _ends_in(name: str, ends: tuple[str, ...]) -> bool:
    return any(f".{name}".endswith(f".{end}") for end in ends)


def _nothing(tensors: Mapping[str, TensorInfo]) -> str:
    if tensors:
        return f"None of its {len(tensors)} tensors is a LoRA weight: there is nothing to apply."
    return f"The file holds no tensors. {ZERO3}"


def _check_targets(
    config: PeftConfig, targets: Targets, modules: Mapping[str, ModuleParts]
) -> None:
    """Config and tensors must agree on what is adapted."""
    for name in modules:
        if not targets.modules[name].adapted:
            raise AdapterRejected(
                f"There are weights for {name}, which the config's target_modules, exclude_modules,"
                " layers_to_transform or modules_to_save rule out. Mend the config.",
                param=name,
            )
    if config.ensure_weight_tying and any(name in modules for name in HEADS):
        raise AdapterRejected(
            "ensure_weight_tying ties a LoRA on the embedding to the head. Train without it.",
            param="ensure_weight_tying",
        )
    if config.targets is None:
        return
    present = {_kind(name) for name in modules}
    missing = [
        name
        for name, target in targets.modules.items()
        if target.adapted and name not in modules and _kind(name) in present
    ]
    if missing:
        raise AdapterRejected(
            f"The config adapts {missing[0]}, but there are no weights for it and"
            f" {len(missing) - 1} more modules: the file is incomplete. Save the adapter again.",
            code="adapter_incomplete",
            param=missing[0],
        )


def _check_bias(config: PeftConfig, modules: Mapping[str, ModuleParts]) -> None:
    for name, parts in modules.items():
        if config.lora_bias != ("bias" in parts.names) and not parts.embedding:
            state = "but there is none" if config.lora_bias else "but there is one"
            raise AdapterRejected(
                f"lora_bias is {str(config.lora_bias).lower()}, {state} for {name}. Mend the"
                " config, or save the adapter again.",
                param="lora_bias",
            )


def _warnings(
    config: PeftConfig,
    targets: Targets,
    shapes: Mapping[str, ModuleShape],
    copies: Mapping[str, str],
) -> tuple[str, ...]:
    unused = targets.unmatched
    warnings = [f"pattern {key[:80]!r} is not used by any module" for key in unused[:MAX_UNUSED]]
    if len(unused) > MAX_UNUSED:
        warnings.append(f"{len(unused) - MAX_UNUSED} more patterns are not used by any module")
    present = {_kind(name) for name in shapes}
    if config.targets is not None:
        adapted = {_kind(name) for name, target in targets.modules.items() if target.adapted}
        warnings += [
            f"the config adapts {kind}, but there are no weights for it"
            for kind in sorted(adapted - present)
        ]
    warnings += [
        f"the scale {scale:g} is unusual; check lora_alpha"
        for scale in sorted({s.scale for s in shapes.values()})
        if not 0 < scale <= UNUSUAL_SCALE
    ]
    warnings += [f"{name} repeats the base and was dropped" for name in copies]
    if config.modules_to_save and not copies:
        warnings.append("modules_to_save names nothing of this base")
    return tuple(warnings)


def _kind(name: str) -> str:
    """A module's name within its layer."""
    return re.sub(r"^.*\.\d+\.", "", name)
