"""A backbone's weights, read from safetensors files and laid out for the forward pass.

Every tensor of the files is used, ignored by a named rule, or an error; so is every shape.
Projections that share an input are one matrix: q, k and v; gate and up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from engine.errors import UnsupportedModel
from engine.model.checkpoint import weight_files
from engine.model.spec import BackboneSpec

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
IGNORED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are [out, in]; qkv is q over k over v, gate_up is gate over up. Norms are [H];
    qk_norm [heads + KV heads, head_dim] where the model has one. None: the model has no such."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None

    def to(self, device: torch.device) -> LayerWeights:
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {
            name: None if part is None else part.to(device) for name, part in parts.items()
        }
        return LayerWeights(**moved)


@dataclass(frozen=True, slots=True)
class Weights:
    """embed and head [V, H]: one tensor where the head is tied."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor

    def to(self, device: torch.device) -> Weights:
        """Layer by layer; a tied head stays one tensor."""
        embed = self.embed.to(device)
        head = embed if self.head is self.embed else self.head.to(device)
        layers = tuple(layer.to(device) for layer in self.layers)
        return Weights(embed, layers, self.norm.to(device), head)


def load_weights(folder: str | Path, spec: BackboneSpec, dtype: torch.dtype) -> Weights:
    """Read, check and cast. Raises UnsupportedModel naming the tensor that is wrong."""
    expected = dict(_shapes(spec))
    found: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                if name.endswith(IGNORED):
                    continue
                if name not in expected and not (spec.tied_head and name == "lm_head.weight"):
                    raise UnsupportedModel(f"{path.name}: tensor {name} is not part of the model")
                found[name] = _checked(name, file.get_tensor(name), expected.get(name)).to(dtype)
    missing = sorted(set(expected) - set(found))
    if missing:
        raise UnsupportedModel(
            f"tensor {missing[0]} is missing from the weights ({len(missing)} are)"
        )
    head = found.get("lm_head.weight")
    embed = found["model.embed_tokens.weight"]
    if spec.tied_head and head is not None and not torch.equal(head, embed):
        raise UnsupportedModel("lm_head.weight differs from the embedding, but the head is tied")
    return Weights(
        embed=embed,
        layers=tuple(_layer(found, spec, i) for i in range(spec.num_layers)),
        norm=found["model.norm.weight"],
        head=embed if spec.tied_head or head is None else head,
    )


def _shapes(spec: BackboneSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that the model must have."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    yield "model.embed_tokens.weight", (spec.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not spec.tied_head:
        yield "lm_head.weight", (spec.vocab_size, hidden)
    linears = (
        ("self_attn.q_proj", q, hidden, spec.qkv_bias),
        ("self_attn.k_proj", kv, hidden, spec.qkv_bias),
        ("self_attn.v_proj", kv, hidden, spec.qkv_bias),
        ("self_attn.o_proj", hidden, q, spec.o_bias),
        ("mlp.gate_proj", inner, hidden, spec.mlp_bias),
        ("mlp.up_proj", inner, hidden, spec.mlp_bias),
        ("mlp.down_proj", hidden, inner, spec.mlp_bias),
    )
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        for name, rows, columns, bias in linears:
            yield f"{prefix}.{name}.weight", (rows, columns)
            if bias:
                yield f"{prefix}.{name}.bias", (rows,)
        if spec.qk_norm:
            yield f"{prefix}.self_attn.q_norm.weight", (spec.head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (spec.head_dim,)


def _checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor:
    if tensor.dtype not in FLOATS:
        raise UnsupportedModel(f"tensor {name} has dtype {tensor.dtype}: floats only")
    if shape is not None and tuple(tensor.shape) != shape:
        raise UnsupportedModel(
            f"tensor {name} has shape {list(tensor.shape)}, config.json says {list(shape)}"
        )
    return tensor


class _Layer:
    """One layer's tensors, taken out of `found` so that no weight is held twice for long."""

    def __init__(self, found: dict[str, torch.Tensor], layer: int) -> None:
        self._found = found
        self._prefix = f"model.layers.{layer}."

    def take(self, name: str) -> torch.Tensor:
        return self._found.pop(self._prefix + name)

    def matrix(self, *names: str) -> torch.Tensor:
        return torch.cat([self.take(f"{name}.weight") for name in names])

    def bias(self, *names: str, present: bool) -> torch.Tensor | None:
        return torch.cat([self.take(f"{name}.bias") for name in names]) if present else None

    def qk_norm(self, spec: BackboneSpec) -> torch.Tensor | None:
        if not spec.qk_norm:
            return None
        q, k = self.take("self_attn.q_norm.weight"), self.take("self_attn.k_norm.weight")
        return torch.cat([q.expand(spec.num_heads, -1), k.expand(spec.num_kv_heads, -1)])


def _layer(found: dict[str, torch.Tensor], spec: BackboneSpec, layer: int) -> LayerWeights:
    of = _Layer(found, layer)
    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    return LayerWeights(
        input_norm=of.take("input_layernorm.weight"),
        qkv=of.matrix(*qkv),
        qkv_bias=of.bias(*qkv, present=spec.qkv_bias),
        qk_norm=of.qk_norm(spec),
        o=of.take("self_attn.o_proj.weight"),
        o_bias=of.bias("self_attn.o_proj", present=spec.o_bias),
        post_norm=of.take("post_attention_layernorm.weight"),
        gate_up=of.matrix(*gate_up),
        gate_up_bias=of.bias(*gate_up, present=spec.mlp_bias),
        down=of.take("mlp.down_proj.weight"),
        down_bias=of.bias("mlp.down_proj", present=spec.mlp_bias),
    )
