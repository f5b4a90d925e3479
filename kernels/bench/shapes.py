"""Shapes of models that benchmarks run with random weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.rotary import Heads
from kernels.segments import Ints

QKV, ATTN_OUT, GATE_UP, DOWN = (0, 1, 2), (3,), (4, 5), (6,)
GROUPS = (QKV, ATTN_OUT, GATE_UP, DOWN)
LAYER_MODULES = 7


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    vocab: int
    page_tokens: int = 16

    @property
    def qkv_width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def page_elements(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.page_tokens

    @property
    def heads(self) -> Heads:
        return Heads(
            self.num_heads, self.num_kv_heads, self.head_dim, self.page_tokens, self.page_elements
        )

    @property
    def features(self) -> Ints:
        """[layers x 7, 2] in and out of each module."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = [
            (self.hidden, q),
            (self.hidden, kv),
            (self.hidden, kv),
            (q, self.hidden),
            (self.hidden, self.inner),
            (self.hidden, self.inner),
            (self.inner, self.hidden),
        ]
        return np.array(layer * self.num_layers, np.int64)


SHAPES = {
    "llama-3.1-8b": Shape(4096, 14336, 32, 8, 128, 32, 128256),
    "smollm2-135m": Shape(576, 1536, 9, 3, 64, 30, 49152),
}
