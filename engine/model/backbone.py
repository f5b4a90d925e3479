"""The forward pass of a frozen base model over a ragged batch, with an adapter term at each module.

Tokens of all spans lie one after another: activations are [T, H]. Each projection is one matrix
product for all rows plus the adapter term; norms, rope and the gate are the base's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.model.modules import FUSED, LAYER_MODULES
from engine.model.rope import Rope
from engine.model.spec import BackboneSpec
from engine.model.weights import LayerWeights, Weights


class Attention(Protocol):
    """Attention bound to one batch."""

    def write(self, layer: int, keys_values: torch.Tensor) -> None: ...

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor: ...


class Lora(Protocol):
    """The adapter term bound to the rows of one batch; every call adds to y in place."""

    def add(self, modules: Sequence[int], x: torch.Tensor, y: torch.Tensor) -> None: ...

    def add_embedding(self, module: int, tokens: torch.Tensor, y: torch.Tensor) -> None: ...


class Backbone:
    """num_positions bounds the positions that it will ever see."""

    def __init__(self, spec: BackboneSpec, weights: Weights, num_positions: int) -> None:
        self.spec = spec
        self._weights = weights
        self._rope = Rope(spec.rope, spec.head_dim, num_positions, weights.embed.dtype)
        table = spec.modules
        self._embed, self._head = table.embed_tokens.id, table.lm_head.id

    def hidden(
        self, tokens: torch.Tensor, positions: torch.Tensor, attention: Attention, lora: Lora
    ) -> torch.Tensor:
        """[T, H] before the last norm. tokens and positions [T] int64."""
        angles = self._rope.at(positions)
        x = F.embedding(tokens, self._weights.embed)
        lora.add_embedding(self._embed, tokens, x)
        for layer, weights in enumerate(self._weights.layers):
            qkv, o, gate_up, down = _module_ids(layer)
            h = self._norm(x, weights.input_norm)
            q = self._qkv(layer, weights, h, angles, attention, lora, qkv)
            h = attention.attend(layer, q)
            x += self._project(h, weights.o, weights.o_bias, lora, o)
            h = self._norm(x, weights.post_norm)
            gate, up = self._project(h, weights.gate_up, weights.gate_up_bias, lora, gate_up).chunk(
                2, -1
            )
            x += self._project(F.silu(gate) * up, weights.down, weights.down_bias, lora, down)
        return x

    def logits(self, hidden: torch.Tensor, lora: Lora) -> torch.Tensor:
        """[N, V] float32 for rows [N, H] of `hidden`; `lora` is bound to those rows."""
        h = self._norm(hidden, self._weights.norm)
        return self._project(h, self._weights.head, None, lora, (self._head,)).float()

    def _qkv(
        self,
        layer: int,
        weights: LayerWeights,
        h: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        attention: Attention,
        lora: Lora,
        modules: Sequence[int],
    ) -> torch.Tensor:
        """Queries [T, heads, D], rotated; keys and values go to the arena."""
        spec = self.spec
        qkv = self._project(h, weights.qkv, weights.qkv_bias, lora, modules)
        qkv = qkv.view(len(h), -1, spec.head_dim)
        qk = qkv[:, : spec.num_heads + spec.num_kv_heads]
        if weights.qk_norm is not None:
            qk = F.rms_norm(qk, (spec.head_dim,), None, spec.rms_norm_eps) * weights.qk_norm
        qk = self._rope.apply(qk, angles)
        qkv[:, spec.num_heads : spec.num_heads + spec.num_kv_heads] = qk[:, spec.num_heads :]
        attention.write(layer, qkv[:, spec.num_heads :])
        return qk[:, : spec.num_heads]

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.spec.rms_norm_eps)

    def _project(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        lora: Lora,
        modules: Sequence[int],
    ) -> torch.Tensor:
        y = F.linear(x, weight, bias)
        lora.add(modules, x, y)
        return y


def _module_ids(layer: int) -> list[tuple[int, ...]]:
    """Ids of the layer's modules, by groups that share an input."""
    first = layer * len(LAYER_MODULES)
    return [tuple(first + i for i in group) for group in FUSED]
