"""The first half of the adapter term: x A, for all modules that share x, in one launch.

Semantics, for row n of a block whose adapter has rank[t] for slice t, and p < SPLIT::

    part[p, n, t * RCAP + r] = sum over k of part p of x[n, k] A_t[r, k]        r < rank[t]

Nothing else of `part` is written. Where what x is projected to is to be normalised, a row's first
program also leaves its factor (`kernels.norm`) in factors[n], for whoever adds the term. The grid
is (part of k, chunk of a slice's ranks, block): a decode step has few rows and must still load A
with the whole chip, hence the parts; their sums are left to the reader, in a fixed order, so that
results don't change from run to run and no atomics are needed. Chunks of 16 ranks are dealt to
CHUNKS programs: with one program for all, a kernel would take as long as its largest rank. Slices
have ranks of their own and may be absent; x is read again for each, from the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.tile import RANKS, a_of, block_of, norm_factor, product, rank_of, weights


@triton.jit
def shrink_ranks(
    x, a, part, first, rank, n, lo, hi, x_stride,
    K: tl.constexpr, STRIDE: tl.constexpr, M: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Ranks first .. first + RANKS - 1 over k in lo .. hi - 1, stored at `part`."""
    of_row = x + tl.maximum(n, 0)[:, None] * x_stride
    r = first + tl.arange(0, RANKS)
    ROWS: tl.constexpr = RANKS if M == 1 else M
    COLS: tl.constexpr = BK if M == 1 else RANKS
    acc = tl.zeros((ROWS, COLS), tl.float32)
    # Said again here: sums alone, without a product of tiles, are not pipelined by themselves.
    for start in tl.range(lo, hi, BK, num_stages=STAGES):
        k = start + tl.arange(0, BK)
        if K % BK == 0:
            xs = tl.load(of_row + k[None, :], mask=(n >= 0)[:, None], other=0.0)
            ws = tl.load(a + r[:, None] * K + k[None, :], mask=(r < rank)[:, None], other=0.0)
        else:
            mask = (n >= 0)[:, None] & (k < K)[None, :]
            xs = tl.load(of_row + k[None, :], mask=mask, other=0.0)
            ws = weights(a, first, rank, k, K, RANKS)
        if M == 1:
            acc += ws.to(tl.float32) * xs.to(tl.float32)
        else:
            acc += product(xs, tl.trans(ws), EXACT)
    where = part + tl.maximum(n, 0)[:, None] * STRIDE + r[None, :]
    mask = (n >= 0)[:, None] & (r < rank)[None, :]
    if M == 1:
        tl.store(where, tl.sum(acc, 1)[None, :], mask=mask)
    else:
        tl.store(where, acc, mask=mask)


@triton.jit(do_not_specialize=["module"])
def shrink_kernel(
    x,  # [N, K], rows x_stride apart
    arena,  # [elements]
    entries,  # [S, num_modules, 6] int64
    rows,  # [S, M] int32
    part,  # [SPLIT, N, STRIDE] float32
    squares,  # [N, PARTS] float32 where PARTS
    factors,  # [N] float32 where PARTS
    eps,
    module,
    num_modules,
    num_rows,
    x_stride,
    PARTS: tl.constexpr,
    K: tl.constexpr,
    SPLIT: tl.constexpr,
    STRIDE: tl.constexpr,
    RCAP: tl.constexpr,
    M: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    CHUNKS: tl.constexpr,
    EXACT: tl.constexpr,
):
    p = tl.program_id(0)
    t = tl.program_id(1) // CHUNKS
    first = tl.program_id(1) % CHUNKS * RANKS
    s = tl.program_id(2)
    n = block_of(rows, s, num_rows, M, True)
    if PARTS > 0 and p + t + first == 0:
        tl.store(factors + tl.maximum(n, 0), norm_factor(squares, n, eps, K, PARTS), n >= 0)
    entry = entries + (s.to(tl.int64) * num_modules + module + t) * 6
    rank = rank_of(entry)
    if rank > first:
        a = a_of(arena, entry)
        per: tl.constexpr = (K + BK * SPLIT - 1) // (BK * SPLIT) * BK
        lo = p * per
        hi = tl.minimum(lo + per, K)
        part += p.to(tl.int64) * num_rows * STRIDE + t * RCAP
        shrink_ranks(x, a, part, first, rank, n, lo, hi, x_stride, K, STRIDE, M, BK, STAGES, EXACT)
        STEP: tl.constexpr = CHUNKS * RANKS
        if RCAP > STEP:
            for more in tl.range(first + STEP, rank, STEP, num_stages=1):
                shrink_ranks(
                    x, a, part, more, rank, n, lo, hi, x_stride, K, STRIDE, M, BK, STAGES, EXACT
                )


@triton.jit(do_not_specialize=["module"])
def lookup_kernel(
    tokens,  # [N] int64
    arena,  # [elements]; A is [vocabulary, rank]
    entries,  # [S, num_modules, 6] int64
    rows,  # [S, M] int32
    part,  # [N, STRIDE] float32
    module,
    num_modules,
    num_rows,
    STRIDE: tl.constexpr,
    RCAP: tl.constexpr,
    M: tl.constexpr,
):
    """part[n, r] = A[tokens[n], r]. grid (block,)"""
    s = tl.program_id(0)
    n = block_of(rows, s, num_rows, M, True)
    entry = entries + (s.to(tl.int64) * num_modules + module) * 6
    rank = rank_of(entry)
    if rank > 0:
        r = tl.arange(0, RCAP)
        token = tl.load(tokens + tl.maximum(n, 0))
        mask = (n >= 0)[:, None] & (r < rank)[None, :]
        h = tl.load(a_of(arena, entry) + token[:, None] * rank + r[None, :], mask=mask, other=0.0)
        where = part + tl.maximum(n, 0)[:, None] * STRIDE + r[None, :]
        tl.store(where, h.to(tl.float32), mask=mask)
