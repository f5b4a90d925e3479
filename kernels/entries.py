"""Each block's rows of the adapter table, gathered once a step.

Semantics: ``entries[s, m] = table[adapters[s], m]``, zeros where adapters[s] is -1. Every later
kernel then finds a weight's address with one load that depends on nothing but its program's number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _gather(
    table,  # [G, width] int64
    adapters,  # [S] int32
    entries,  # [S, width] int64
    width,
    BLOCK: tl.constexpr,
):
    s = tl.program_id(0)
    adapter = tl.load(adapters + s).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(table + adapter * width + i, mask=(i < width) & (adapter >= 0), other=0)
    tl.store(entries + s.to(tl.int64) * width + i, words, mask=i < width)


def gather_entries(table: torch.Tensor, adapters: torch.Tensor, entries: torch.Tensor) -> None:
    """table [G, M, 6] int64, adapters [S] int32, entries [S, M, 6] int64: written."""
    width = entries.shape[1] * entries.shape[2]
    grid = (len(adapters), triton.cdiv(width, 1024))
    _gather[grid](table, adapters, entries, width, BLOCK=1024, num_warps=4)
