"""What the GPU kernels share: tiles of the adapter term, and numbers read from an entry.

A program handles the rows of one block (`kernels.blocks`), hence one adapter, and BN columns; its
tiles are [M, BN]. Blocks of 16 rows or more are products on tensor cores. Blocks of one row are
sums over ranks: with 256 columns a warp, each thread has all ranks of its columns, and nothing
crosses threads.

`entries` [S, M, 6] holds, for each block and module, a row of the adapter table (`kernels.table`),
gathered once a step: a program finds its weights with one load. Rank 0 means absent.

`part` [SPLIT, N, slices x RCAP] float32 holds what `kernels.shrink` leaves: partial sums of x A,
each row's and rank's in its own place, added up here in a fixed order. Only ranks below the entry's
are ever written or read. The first ranks (`ranks_at_once`) are straight-line code, so that their
loads are all under way at once; further ones are a loop.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

RANKS = tl.constexpr(16)
"""That a shrink handles at a time, and an expand at least: tensor cores take no fewer."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, whose bf16 products are not to be trusted."""
    return bool(triton.knobs.runtime.interpret)


def is_exact(dtype: torch.dtype) -> bool:
    """Whether products and functions are computed without shortcuts: neither float32 rounded to
    tf32, nor the interpreter's bf16 products, which are wrong."""
    return dtype == torch.float32 or interpreted()


@triton.jit
def block_of(rows, s, num_rows, M: tl.constexpr, BLOCKED: tl.constexpr):
    """[M] rows of block s, -1 where there is none; consecutive rows where nothing is blocked."""
    i = s * M + tl.arange(0, M)
    n = tl.load(rows + i) if BLOCKED else tl.where(i < num_rows, i, -1)
    return n.to(tl.int64)


@triton.jit
def product(a, b, EXACT: tl.constexpr):
    """a b, accumulated in float32. EXACT: operands in float32, not rounded to tf32."""
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b)


@triton.jit
def sums(x, M: tl.constexpr, N: tl.constexpr):
    """[M] sums of x [M, N] over its columns: neighbours first, then neighbouring sums, and so on.

    N is a power of two. The order is the columns' alone, not that of a layout, so a row's sum has
    the same bits whatever tiles it was cut into, with sums of sums on the way.
    """
    for level in tl.static_range(16):
        if N >> level > 1:
            even, odd = tl.split(tl.reshape(x, (M, N >> (level + 1), 2)))
            x = even + odd
    return tl.reshape(x, (M,))


@triton.jit
def times(a, b):
    """a b, rounded. The compiler may contract a plain product with a sum behind it, and does so in
    some kernels and not in others; it leaves this one alone. -0 becomes 0."""
    return tl.fma(a, b, 0.0)


@triton.constexpr_function
def ranks_at_once(rank_cap: int, block_rows: int) -> int:
    """Ranks that an expand handles in straight-line code, in graphs that serve up to rank_cap. In
    blocks of one row each thread keeps all of them for its columns, and has no room for more."""
    return 16 if rank_cap <= 16 or block_rows == 1 else 32


@triton.jit
def spread(h, b, M: tl.constexpr, EXACT: tl.constexpr):
    """[M, BN] float32: h [M, R] float32 times b [R, BN]. Where M is 1, h is [R]."""
    if M == 1:
        term = tl.sum(h[:, None] * b.to(tl.float32), 0)[None, :]
    else:
        term = product(h.to(b.dtype), b, EXACT)
    return term


@triton.jit
def weights(base, first, rank, cols, width, RB: tl.constexpr):
    """[RB, BN] of ranks first .. of a matrix [rank, width], zeros beyond either."""
    r = first + tl.arange(0, RB)
    mask = (r < rank)[:, None] & (cols < width)[None, :]
    return tl.load(base + r[:, None] * width + cols[None, :], mask=mask, other=0.0)


@triton.jit
def part_sums(
    part, first, rank, n, num_rows, SPLIT: tl.constexpr, STRIDE: tl.constexpr, M: tl.constexpr,
    RB: tl.constexpr,
):  # fmt: skip
    """[M, RB] float32: ranks first .. of x A, summed over the parts. Where M is 1, [RB]."""
    # All parts in one tile. Added one by one, each would go through shared memory by itself, since
    # the compiler moves the product's layout up to the loads.
    SPLIT_CEIL: tl.constexpr = triton.next_power_of_2(SPLIT)
    r = first + tl.arange(0, RB)
    p = tl.arange(0, SPLIT_CEIL)
    if M == 1:
        row = tl.max(n)
        where = part + (p[:, None].to(tl.int64) * num_rows + tl.maximum(row, 0)) * STRIDE + r[None]
        mask = (p < SPLIT)[:, None] & (r < rank)[None, :] & (row >= 0)
        h = tl.sum(tl.load(where, mask=mask, other=0.0), 0)
    elif SPLIT == 1:
        where = part + tl.maximum(n, 0)[:, None] * STRIDE + r[None, :]
        mask = (n >= 0)[:, None] & (r < rank)[None, :]
        h = tl.load(where, mask=mask, other=0.0)
    else:
        row = p[:, None].to(tl.int64) * num_rows + tl.maximum(n, 0)[None, :]
        there = (p < SPLIT)[:, None] & (n >= 0)[None, :]
        where = part + row[:, :, None] * STRIDE + r[None, None, :]
        h = tl.sum(tl.load(where, mask=there[:, :, None] & (r < rank)[None, None, :], other=0.0), 0)
    return h


@triton.jit
def rank_of(entry):
    return tl.load(entry + 2).to(tl.int32)


@triton.jit
def scale_of(entry):
    """The entry's scale: float32 bits in an int64 column."""
    return tl.load(entry + 3).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def a_of(arena, entry):
    return arena + tl.multiple_of(tl.load(entry), 64)


@triton.jit
def b_of(arena, entry):
    return arena + tl.multiple_of(tl.load(entry + 1), 64)


@triton.jit
def in_a_loads_layout(x):
    """x [M, N]. The compiler carries a product's layout as far as it can; not through here."""
    return tl.sum(x[:, None, :], 1)


@triton.jit
def with_term(
    y, first_b, first_h, part, arena, entry, rank, n, factor, cols, width, num_rows,
    SPLIT: tl.constexpr, STRIDE: tl.constexpr, RCAP: tl.constexpr, M: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """[M, BN] float32: factor [M] times (y + the term of one module), plus the term's bias.

    y: columns `cols` of the module's output. first_b, first_h: `weights` of B and `part_sums` of
    the first `ranks_at_once`; loaded by the caller ahead of everything else, since each product
    here waits for all loads before it. part points at the module's slice.
    """
    acc = spread(first_h, first_b, M, EXACT)
    RB: tl.constexpr = ranks_at_once(RCAP, M)
    if RCAP > RB:
        b = b_of(arena, entry)
        for first in tl.range(RB, rank, RB, num_stages=1):
            h = part_sums(part, first, rank, n, num_rows, SPLIT, STRIDE, M, RB)
            acc += spread(h, weights(b, first, rank, cols, width, RB), M, EXACT)
    scale = scale_of(entry)
    delta = acc * scale
    if M == 4 and not EXACT:
        # A product has no less than 8 rows: all that follows would be computed twice for 4. Half
        # the bytes go through shared memory; y was rounded likewise when its product was written.
        delta = in_a_loads_layout(delta.to(arena.dtype.element_ty)).to(tl.float32)
    y = times(y.to(tl.float32) + delta, factor[:, None])
    bias = tl.load(entry + 4)
    if (bias > 0) & (rank > 0):
        where = arena + tl.multiple_of(bias, 64) + cols
        y += tl.load(where, mask=cols < width, other=0.0).to(tl.float32)[None, :] * scale
    return y


@triton.jit
def norm_factor(squares, n, eps, H: tl.constexpr, PARTS: tl.constexpr):
    """[M] 1 / root mean square of rows n of H elements, whose squares are summed in PARTS parts.

    One part after the other, so that a row's factor has the same bits in every tile. PARTS 0: the
    factors themselves are at `squares`.
    """
    if PARTS == 0:
        return tl.load(squares + tl.maximum(n, 0), mask=n >= 0, other=0.0)
    row = squares + tl.maximum(n, 0) * PARTS
    total = tl.load(row, mask=n >= 0, other=0.0)
    for p in tl.static_range(1, PARTS):
        total += tl.load(row + p, mask=n >= 0, other=0.0)
    return tl.rsqrt(total / H + eps)
