"""A backbone of a known shape with random weights on the GPU, and adapters likewise: for measuring
without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from engine.adapters.layout import AdapterLayout, ModuleShape, layout
from engine.model.modules import LAYER_MODULES
from engine.model.spec import BackboneSpec, read_spec
from engine.model.weights import LayerWeights, Weights

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    },
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = {"all": (*ATTENTION, "gate_proj", "up_proj", "down_proj"), "attn": ATTENTION}
WEIGHT_STD = 0.02


def dummy_spec(shape: str) -> BackboneSpec:
    return read_spec(dict(SHAPES[shape]), {})


def dummy_weights(spec: BackboneSpec, dtype: torch.dtype, device: str = "cuda") -> Weights:
    """Random matrices, norms of one. Nothing is ever on the host."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=device).normal_(std=WEIGHT_STD)

    def layers() -> Iterator[LayerWeights]:
        hidden, inner = spec.hidden_size, spec.intermediate_size
        heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        ones = torch.ones(hidden, dtype=dtype, device=device)
        for _ in range(spec.num_layers):
            yield LayerWeights(
                input_norm=ones,
                qkv=matrix(heads + 2 * kv_heads, hidden),
                qkv_bias=None,
                qk_norm=None,
                o=matrix(hidden, heads),
                o_bias=None,
                post_norm=ones,
                gate_up=matrix(2 * inner, hidden),
                gate_up_bias=None,
                down=matrix(hidden, inner),
                down_bias=None,
            )

    norm = torch.ones(spec.hidden_size, dtype=dtype, device=device)
    embed = matrix(spec.vocab_size, spec.hidden_size)
    head = matrix(spec.vocab_size, spec.hidden_size)
    return Weights(embed, tuple(layers()), norm, head)


def dummy_layout(spec: BackboneSpec, rank: int, targets: str) -> AdapterLayout:
    """Of an adapter of that rank on every layer's `targets`: a key of TARGETS."""
    shapes = {
        layer * len(LAYER_MODULES) + i: ModuleShape(rank, 1.0)
        for layer in range(spec.num_layers)
        for i, name in enumerate(LAYER_MODULES)
        if name.rsplit(".", 1)[1] in TARGETS[targets]
    }
    return layout(shapes, spec.modules)


def random_block(num_bytes: int, dtype: torch.dtype, seed: int = 0) -> np.ndarray[Any, Any]:
    """Bytes of random weights, to be copied wherever a dummy adapter is loaded."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_bytes // dtype.itemsize, generator=generator) * WEIGHT_STD
    return values.to(dtype).view(torch.uint8).numpy()
