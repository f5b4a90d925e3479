"""The second half of the adapter term, added to y in place.

Semantics, for row n of a block and column o of slice t::

    y[n, first[t] + o] += scale * (sum over r of (sum over p of part[p, n, t * RCAP + r]) B_t[r, o]
                                   + bias_t[o])

The grid is (tile of columns, block), tiles counted slice by slice so that none crosses a border.
Rows whose term is exactly zero keep y's bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.tile import (
    b_of,
    block_of,
    part_sums,
    rank_of,
    ranks_at_once,
    weights,
    with_term,
)


@triton.jit
def tile_of(
    j, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, BN: tl.constexpr, ALIGN: tl.constexpr
):  # fmt: skip
    """(slice, first column of the slice, its width, first column of the tile in it) of tile j."""
    T0: tl.constexpr = (W0 + BN - 1) // BN
    T1: tl.constexpr = (W1 + BN - 1) // BN
    t = (j >= T0).to(tl.int32) + (j >= T0 + T1).to(tl.int32)
    base = tl.where(t == 0, 0, tl.where(t == 1, W0, W0 + W1))
    width = tl.where(t == 0, W0, tl.where(t == 1, W1, W2))
    tile = j - tl.where(t == 0, 0, tl.where(t == 1, T0, T0 + T1))
    return t, tl.multiple_of(base, ALIGN), tl.multiple_of(width, ALIGN), tile * BN


@triton.jit(do_not_specialize=["module"])
def expand_kernel(
    part,  # [SPLIT, N, STRIDE] float32
    arena,  # [elements]
    entries,  # [S, num_modules, 6] int64
    rows,  # [S, M] int32
    y,  # [N, W0 + W1 + W2], rows y_stride apart
    module,
    num_modules,
    num_rows,
    y_stride,
    W0: tl.constexpr,
    W1: tl.constexpr,
    W2: tl.constexpr,
    SPLIT: tl.constexpr,
    STRIDE: tl.constexpr,
    RCAP: tl.constexpr,
    M: tl.constexpr,
    BN: tl.constexpr,
    ALIGN: tl.constexpr,  # a divisor of all widths
    EXACT: tl.constexpr,
):
    s = tl.program_id(1)
    n = block_of(rows, s, num_rows, M, True)
    t, base, width, first = tile_of(tl.program_id(0), W0, W1, W2, BN, ALIGN)
    entry = entries + (s.to(tl.int64) * num_modules + module + t) * 6
    rank = rank_of(entry)
    RB: tl.constexpr = ranks_at_once(RCAP, M)
    if rank > 0:
        cols = first + tl.arange(0, BN)
        part += t * RCAP
        where = y + tl.maximum(n, 0)[:, None] * y_stride + (base + cols)[None, :]
        mask = (n >= 0)[:, None] & (cols < width)[None, :]
        b = weights(b_of(arena, entry), 0, rank, cols, width, RB)
        old = tl.load(where, mask=mask, other=0.0)
        h = part_sums(part, 0, rank, n, num_rows, SPLIT, STRIDE, M, RB)
        factor = tl.full((M,), 1.0, tl.float32)
        new = with_term(
            old, b, h, part, arena, entry, rank, n, factor, cols, width, num_rows,
            SPLIT, STRIDE, RCAP, M, EXACT,
        )  # fmt: skip
        # -0 + 0 is 0, but a term of zero changes no bits.
        new = tl.where(new == old.to(tl.float32), old, new.to(old.dtype))
        tl.store(where, new, mask=mask)
