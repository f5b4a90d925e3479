"""The modules of a backbone that accept LoRA, numbered. Standard library only.

Module ids are dense: layer l has ids 7 l .. 7 l + 6 in the order of `LAYER_MODULES`, then come
embed_tokens and lm_head. The arena's adapter table is indexed by them.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYER_MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
# Modules that read the same input: a kernel launches once for each of these groups.
FUSED = ((0, 1, 2), (3,), (4, 5), (6,))


@dataclass(frozen=True, slots=True)
class Module:
    """One projection. `name` is its path in the Hugging Face model, such as
    ``model.layers.3.self_attn.q_proj``. For embed_tokens `in_features` is the vocabulary."""

    id: int
    name: str
    in_features: int
    out_features: int


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """All modules of a backbone by id, and the ids that share an input (`groups`)."""

    modules: tuple[Module, ...]
    groups: tuple[tuple[int, ...], ...]
    num_layers: int

    @property
    def embed_tokens(self) -> Module:
        return self.modules[-2]

    @property
    def lm_head(self) -> Module:
        return self.modules[-1]

    def by_name(self) -> dict[str, Module]:
        return {m.name: m for m in self.modules}


def module_table(
    *, num_layers: int, hidden: int, intermediate: int, q_out: int, kv_out: int, vocab: int
) -> ModuleTable:
    """Sizes in features: `q_out` = heads x head_dim, `kv_out` = KV heads x head_dim."""
    sizes = (
        (hidden, q_out),
        (hidden, kv_out),
        (hidden, kv_out),
        (q_out, hidden),
        (hidden, intermediate),
        (hidden, intermediate),
        (intermediate, hidden),
    )
    width = len(LAYER_MODULES)
    modules = [
        Module(layer * width + i, f"model.layers.{layer}.{name}", *sizes[i])
        for layer in range(num_layers)
        for i, name in enumerate(LAYER_MODULES)
    ]
    groups = [
        tuple(layer * width + i for i in group) for layer in range(num_layers) for group in FUSED
    ]
    embed = len(modules)
    modules.append(Module(embed, "model.embed_tokens", vocab, hidden))
    modules.append(Module(embed + 1, "lm_head", hidden, vocab))
    groups += [(embed,), (embed + 1,)]
    return ModuleTable(tuple(modules), tuple(groups), num_layers)
