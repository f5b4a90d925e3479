"""Decode attention alone: all layers of a step over the arena's pages."""

from __future__ import annotations

import torch

from kernels.bench.graphs import COPY_BANDWIDTH, capture, milliseconds
from kernels.bench.shapes import Shape
from kernels.paged_attention import PagedAttention, Tiles


def measure_attention(shape: Shape, num_rows: int, context: int, device: str = "cuda") -> float:
    """Milliseconds of all layers, for rows that all have `context` tokens, pages scattered."""
    per_row = -(-context // shape.page_tokens)
    num_pages = num_rows * per_row + 1
    arena = torch.empty(num_pages * shape.page_elements, dtype=torch.bfloat16, device=device)
    for start in range(0, arena.numel(), 1 << 30):
        arena[start : start + (1 << 30)].normal_()
    pages = (torch.randperm(num_pages - 1, device=device) + 1).to(torch.int32)
    pages = pages.view(num_rows, per_row)
    row = torch.arange(num_rows, dtype=torch.int32, device=device)
    words = torch.stack([row, torch.ones_like(row), row, torch.full_like(row, context)])
    attention = PagedAttention(shape.heads, arena, num_rows)
    q = torch.randn(num_rows, shape.qkv_width, device=device, dtype=torch.bfloat16)
    out = torch.empty(
        num_rows, shape.num_heads * shape.head_dim, device=device, dtype=torch.bfloat16
    )

    def layers() -> None:
        for layer in range(shape.num_layers):
            attention.attend(q, Tiles(words, 1), pages, layer, None, out)

    return milliseconds([capture(layers)])[0]


def floor_ms(shape: Shape, num_rows: int, context: int) -> float:
    """The bytes of keys and values, each once."""
    return 2e3 * num_rows * context * shape.page_elements / shape.page_tokens / COPY_BANDWIDTH
