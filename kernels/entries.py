"""Each block's rows of the adapter table, gathered once a step, in the order of their ranks.

Semantics, for block s of adapter a = adapters[s] (`kernels.blocks`)::

    weights[s] = sum over m of table[a, m].rank        0 without an adapter, -1 without rows
    place[s]   = blocks of greater weight, or of the same weight ahead of s
    entries[place[s], m] = table[a, m]                 zeros without an adapter
    sorted[place[s]]     = rows[s]

Every later kernel finds a weight's address with one load that depends on nothing but its program's
number, and starts the programs that take longest first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.blocks import RowBlocks
from kernels.table import COLUMNS


@triton.jit
def _weigh(
    table,  # [G, num_modules, 6] int64
    adapters,  # [S] int32
    rows,  # [S, M] int32
    weights,  # [S] int64
    num_modules,
    M: tl.constexpr,
    BLOCK: tl.constexpr,  # at least num_modules
):
    """grid (block,)"""
    s = tl.program_id(0)
    adapter = tl.load(adapters + s).to(tl.int64)
    m = tl.arange(0, BLOCK)
    where = table + (tl.maximum(adapter, 0) * num_modules + m) * 6 + 2
    weight = tl.sum(tl.load(where, mask=(m < num_modules) & (adapter >= 0), other=0))
    tl.store(weights + s, tl.where(tl.load(rows + s * M) >= 0, weight, -1))


@triton.jit
def _gather(
    table,  # [G, width] int64
    adapters,  # [S] int32
    rows,  # [S, M] int32
    weights,  # [S] int64
    sorted_rows,  # [S, M] int32
    entries,  # [S, width] int64
    width,
    num_blocks,
    M: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """grid (block, piece of the width)"""
    s = tl.program_id(0)
    weight = tl.load(weights + s)
    place = tl.full((), 0, tl.int32)
    for first in range(0, num_blocks, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        of = tl.load(weights + other, mask=other < num_blocks, other=-2)
        place += tl.sum(((of > weight) | ((of == weight) & (other < s))).to(tl.int32))
    adapter = tl.load(adapters + s).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(table + adapter * width + i, mask=(i < width) & (adapter >= 0), other=0)
    tl.store(entries + place.to(tl.int64) * width + i, words, mask=i < width)
    m = tl.arange(0, M)
    tl.store(sorted_rows + place * M + m, tl.load(rows + s * M + m))


def sort_blocks(
    table: torch.Tensor,
    blocks: RowBlocks,
    weights: torch.Tensor,
    sorted_rows: torch.Tensor,
    entries: torch.Tensor,
) -> None:
    """table [G, modules, 6] int64. Written: weights [S] int64, sorted_rows [S, M] int32, entries
    [S, modules, 6] int64."""
    num, block_rows, num_modules = blocks.num_blocks, blocks.block_rows, table.shape[1]
    _weigh[(num,)](
        table,
        blocks.adapters,
        blocks.rows,
        weights,
        num_modules,
        M=block_rows,
        BLOCK=triton.next_power_of_2(num_modules),
    )
    width = num_modules * COLUMNS
    _gather[(num, triton.cdiv(width, 1024))](
        table,
        blocks.adapters,
        blocks.rows,
        weights,
        sorted_rows,
        entries,
        width,
        num,
        M=block_rows,
        BLOCK=1024,
        AT_ONCE=256,
    )
