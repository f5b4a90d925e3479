"""The residual sum, with the adapter term of the projection that feeds it and half of the norm.

Semantics, for each row n and column h (`delta` is the adapter term, 0 without one)::

    r[n, h]       += y[n, h] + delta[n, h]             or, first in a pass,
    r[n, h]        = embed[tokens[n], h] + delta[n, h]
    x[n, h]        = r[n, h] * weight[h]
    squares[n, p]  = sum over h of part p of r[n, h]^2

See `kernels.norm` for the other half of the norm. The grid is (tile p of columns, block of rows): a
norm in one would need whole rows in a program, which for one adapter over many rows reads B once a
row.

A part is what a warp reads at once, 512 bytes, whatever the tile: its sum is taken over 16 bytes in
each thread, then over the warp's threads. So a row's norm has the same bits in every graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.lora_gpu import Term
from kernels.norm import Squares
from kernels.rowwise import rowwise
from kernels.tile import (
    b_of,
    block_of,
    part_sums,
    rank_of,
    ranks_at_once,
    times,
    weights,
    with_term,
)
from kernels.tuning import Tile

PART_BYTES = 512


@triton.jit(do_not_specialize=["module"])
def _residual(
    source,  # y [N, H]; or embed [V, H] where LOOKUP
    tokens,  # [N] int64 where LOOKUP
    r,  # [N, H]
    weight,  # [H]
    x,  # [N, H]
    squares,  # [N, PARTS] float32
    part,  # [SPLIT, N, STRIDE] float32 where LORA
    arena, entries, rows, module, num_modules, num_rows, H: tl.constexpr, LOOKUP: tl.constexpr,
    LORA: tl.constexpr, SPLIT: tl.constexpr, STRIDE: tl.constexpr, RCAP: tl.constexpr,
    M: tl.constexpr, BN: tl.constexpr, PART: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0)
    s = tl.program_id(1)
    n = block_of(rows, s, num_rows, M, LORA)
    h = j * BN + tl.arange(0, BN)
    # All loads first: whatever is added up across threads waits for the loads before it.
    safe = tl.maximum(n, 0)
    mask = (n >= 0)[:, None] & (h < H)[None, :]
    where = safe[:, None] * H + h[None, :]
    if LOOKUP:
        token = tl.load(tokens + safe, mask=n >= 0, other=0)
        total = tl.load(source + token[:, None] * H + h[None, :], mask=mask, other=0.0)
        total = total.to(tl.float32)
    else:
        total = tl.load(source + where, mask=mask, other=0.0).to(tl.float32)
        total += tl.load(r + where, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight + h, mask=h < H, other=0.0).to(tl.float32)
    if LORA:
        entry = entries + (s.to(tl.int64) * num_modules + module) * 6
        rank = rank_of(entry)
        RB: tl.constexpr = ranks_at_once(RCAP, M)
        b = weights(b_of(arena, entry), 0, rank, h, H, RB)
        sums_in = part_sums(part, 0, rank, n, num_rows, SPLIT, STRIDE, M, RB)
        factor = tl.full((M,), 1.0, tl.float32)
        total = with_term(
            total, b, sums_in, part, arena, entry, rank, n, factor, h, H, num_rows,
            SPLIT, STRIDE, RCAP, M, EXACT,
        )  # fmt: skip
    kept = total.to(r.dtype.element_ty)
    tl.store(r + where, kept, mask=mask)
    scaled = kept.to(tl.float32) * gain[None, :]
    scaled = scaled.to(x.dtype.element_ty)
    tl.store(x + where, scaled, mask=mask)
    if LORA and M > 1:
        # In the layout of a load again, not in that of a product of tiles.
        tl.debug_barrier()
        kept = tl.load(r + where, mask=mask, other=0.0)
    kept = kept.to(tl.float32)
    parts = tl.sum(tl.reshape(times(kept, kept), (M, BN // PART, PART)), 2)
    PARTS: tl.constexpr = (H + PART - 1) // PART
    p = j * (BN // PART) + tl.arange(0, BN // PART)
    inside = (n >= 0)[:, None] & (p < PARTS)[None, :]
    tl.store(squares + safe[:, None] * PARTS + p[None, :], parts, mask=inside)


def add_residual(
    y: torch.Tensor,
    r: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    squares: Squares,
    tile: Tile,
    term: Term | None = None,
) -> None:
    """r [N, H] += y [N, H] and the term; x and squares as above. All contiguous.

    squares has a part for each `part_width` columns.
    """
    _launch(y, None, r, weight, x, squares, tile, term)


def embed(
    table: torch.Tensor,
    tokens: torch.Tensor,
    r: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    squares: Squares,
    tile: Tile,
    term: Term | None = None,
) -> None:
    """r [N, H] = table [V, H] at tokens [N] int64, plus the term; the rest as in add_residual."""
    _launch(table, tokens, r, weight, x, squares, tile, term)


def part_width(tile: Tile, dtype: torch.dtype) -> int:
    """Columns of a part of the squares that launches with `tile` on such rows leave."""
    return min(tile.width, PART_BYTES // dtype.itemsize)


def squares_of(r: torch.Tensor, eps: float, tile: Tile) -> Squares:
    """A buffer for the squares that launches with `tile` on r [N, H] leave."""
    num_parts = triton.cdiv(r.shape[1], part_width(tile, r.dtype))
    return Squares(torch.empty(len(r), num_parts, device=r.device), r.shape[1], eps)


def _launch(
    source: torch.Tensor,
    tokens: torch.Tensor | None,
    r: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    squares: Squares,
    tile: Tile,
    term: Term | None,
) -> None:
    tiles = triton.cdiv(r.shape[1], tile.width)
    part = part_width(tile, r.dtype)
    if squares.num_parts != (num_parts := triton.cdiv(r.shape[1], part)):
        raise ValueError(f"squares need {num_parts} parts, one for each {part} columns")
    args = rowwise(r, term)
    _residual[(tiles, args.num_blocks)](
        source,
        source if tokens is None else tokens,
        r,
        weight,
        x,
        squares.parts,
        *args.pointers,
        args.module,
        args.num_modules,
        r.shape[0],
        H=r.shape[1],
        LOOKUP=tokens is not None,
        BN=tile.width,
        PART=part,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **args.constants,
    )
