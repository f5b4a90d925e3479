"""The MLP's gate, with the adapter terms of both projections and the second half of the norm.

Semantics (factor[n] is the row's 1 / rms, 1 without squares; deltas 0 without a term)::

    g[n, i] = factor[n] * y[n, i] + delta_gate[n, i] + bias[i]
    u[n, i] = factor[n] * y[n, I + i] + delta_up[n, i]   + bias[I + i]
    out[n, i] = silu(g[n, i]) * u[n, i]

Grid (tile of I, block of rows). y is read once and never written: adding the term to it in place
would move its bytes twice more, at 256 rows of an 8B model more than all else of the term.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels.lora_gpu import Term
from kernels.norm import Squares
from kernels.rowwise import normalised, rowwise
from kernels.tile import (
    b_of,
    block_of,
    norm_factor,
    part_sums,
    rank_of,
    ranks_at_once,
    times,
    weights,
    with_term,
)
from kernels.tuning import Tile


@triton.jit
def _silu(g, EXACT: tl.constexpr):
    if EXACT:
        return g / (1.0 + tl.exp(-g))
    return libdevice.fast_dividef(g, 1.0 + libdevice.fast_expf(-g))


@triton.jit(do_not_specialize=["module"])
def _gate(
    y,  # [N, 2 I]
    bias,  # [2 I] where BIAS
    out,  # [N, I]
    squares,  # [N, PARTS] float32 where NORM
    eps, part, arena, entries, rows, module, num_modules, num_rows, INNER: tl.constexpr,
    BIAS: tl.constexpr, NORM: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr,
    LORA: tl.constexpr, SPLIT: tl.constexpr, STRIDE: tl.constexpr,
    RCAP: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0)
    s = tl.program_id(1)
    n = block_of(rows, s, num_rows, M, LORA)
    i = j * BN + tl.arange(0, BN)
    # All loads first: whatever is added up across threads waits for the loads before it.
    mask = (n >= 0)[:, None] & (i < INNER)[None, :]
    where = y + tl.maximum(n, 0)[:, None] * (2 * INNER) + i[None, :]
    g = tl.load(where, mask=mask, other=0.0)
    u = tl.load(where + INNER, mask=mask, other=0.0)
    if BIAS:
        bias_g = tl.load(bias + i, mask=i < INNER, other=0.0).to(tl.float32)
        bias_u = tl.load(bias + INNER + i, mask=i < INNER, other=0.0).to(tl.float32)
    factor = tl.full((M,), 1.0, tl.float32)
    if NORM:
        factor = norm_factor(squares, n, eps, H, PARTS)
    if LORA:
        gate = entries + (s.to(tl.int64) * num_modules + module) * 6
        up = gate + 6
        rank_g = rank_of(gate)
        rank_u = rank_of(up)
        RB: tl.constexpr = ranks_at_once(RCAP, M)
        b_g = weights(b_of(arena, gate), 0, rank_g, i, INNER, RB)
        b_u = weights(b_of(arena, up), 0, rank_u, i, INNER, RB)
        h_g = part_sums(part, 0, rank_g, n, num_rows, SPLIT, STRIDE, M, RB)
        h_u = part_sums(part + RCAP, 0, rank_u, n, num_rows, SPLIT, STRIDE, M, RB)
    if LORA:
        g = with_term(
            g, b_g, h_g, part, arena, gate, rank_g, n, factor, i, INNER, num_rows,
            SPLIT, STRIDE, RCAP, M, EXACT,
        )  # fmt: skip
        u = with_term(
            u, b_u, h_u, part + RCAP, arena, up, rank_u, n, factor, i, INNER, num_rows,
            SPLIT, STRIDE, RCAP, M, EXACT,
        )  # fmt: skip
    else:
        g = times(g.to(tl.float32), factor[:, None])
        u = times(u.to(tl.float32), factor[:, None])
    if BIAS:
        g += bias_g[None, :]
        u += bias_u[None, :]
    gated = (_silu(g, EXACT) * u).to(out.dtype.element_ty)
    where = out + tl.maximum(n, 0)[:, None] * INNER + i[None, :]
    tl.store(where, gated, mask=mask)


def silu_gate(
    y: torch.Tensor,
    out: torch.Tensor,
    tile: Tile,
    squares: Squares | None = None,
    bias: torch.Tensor | None = None,
    term: Term | None = None,
) -> None:
    """y [N, 2 I] contiguous, out [N, I] contiguous: written."""
    tiles = triton.cdiv(out.shape[1], tile.width)
    args = rowwise(out, term)
    pointer, eps, norm = normalised(squares, y, term)
    _gate[(tiles, args.num_blocks)](
        y,
        y if bias is None else bias,
        out,
        pointer,
        eps,
        *args.pointers,
        args.module,
        args.num_modules,
        out.shape[0],
        INNER=out.shape[1],
        BIAS=bias is not None,
        BN=tile.width,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **norm,
        **args.constants,
    )
