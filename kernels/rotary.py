"""From the fused q, k, v projection to rotated queries and the arena, in one launch.

Semantics, for token n and head j of width D (factor, bias and delta as in `kernels.gate`)::

    v[d]  = factor[n] * qkv[n, j, d] + delta[n, j, d] + bias[j, d]
    v     = v / rms(v) * head_norm                    q and k heads, where the model has q/k norms
    v[d], v[D/2 + d] = v[d] cos - v[D/2 + d] sin, v[D/2 + d] cos + v[d] sin        q and k heads

Query heads are written back to qkv; key and value heads go to the token's place in the arena,
[page][layer][k, v][KV head][P][D]. The angles are [positions, D] float32: D/2 cosines, then sines.
Grid (head, block of tokens): a tile is one head, in two halves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

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
    sums,
    times,
    weights,
    with_term,
)
from kernels.tuning import Tile

HEAD = Tile(0)


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a layer and where their keys and values lie in a page."""

    num_heads: int
    num_kv_heads: int
    dim: int
    page_tokens: int
    page_elements: int

    def layer_offset(self, layer: int) -> int:
        """Elements from a page's start to the layer's keys."""
        return layer * 2 * self.num_kv_heads * self.page_tokens * self.dim


@triton.jit
def _slice_of(j, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr):
    """Of head j: slice 0, 1, 2 for q, k, v, the head's number in it, the slice's first column in
    qkv and its width."""
    t = (j >= HEADS).to(tl.int32) + (j >= HEADS + KV_HEADS).to(tl.int32)
    head = j - tl.where(t == 0, 0, tl.where(t == 1, HEADS, HEADS + KV_HEADS))
    first = tl.where(t == 0, 0, tl.where(t == 1, HEADS * D, (HEADS + KV_HEADS) * D))
    width = tl.where(t == 0, HEADS * D, KV_HEADS * D)
    return t, head, tl.multiple_of(first, D // 2), tl.multiple_of(width, D // 2)


@triton.jit
def _projected(
    source, bias, squares, eps, part, arena, entry, n, mask, cols, width, num_rows,
    HALF: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, H: tl.constexpr,
    PARTS: tl.constexpr, LORA: tl.constexpr, SPLIT: tl.constexpr,
    STRIDE: tl.constexpr, RCAP: tl.constexpr, M: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Both halves [M, HB] float32 of a head: columns cols and HALF + cols of its slice.

    All loads come first: whatever is added up across threads waits for the loads before it.
    """
    low = tl.load(source, mask=mask, other=0.0)
    high = tl.load(source + HALF, mask=mask, other=0.0)
    factor = tl.full((M,), 1.0, tl.float32)
    if NORM:
        factor = norm_factor(squares, n, eps, H, PARTS)
    if LORA:
        rank = rank_of(entry)
        RB: tl.constexpr = ranks_at_once(RCAP, M)
        b = b_of(arena, entry)
        b_low = weights(b, 0, rank, cols, width, RB)
        b_high = weights(b, 0, rank, cols + HALF, width, RB)
        h = part_sums(part, 0, rank, n, num_rows, SPLIT, STRIDE, M, RB)
    if LORA:
        low = with_term(
            low, b_low, h, part, arena, entry, rank, n, factor, cols, width, num_rows,
            SPLIT, STRIDE, RCAP, M, EXACT,
        )  # fmt: skip
        high = with_term(
            high, b_high, h, part, arena, entry, rank, n, factor, cols + HALF, width, num_rows,
            SPLIT, STRIDE, RCAP, M, EXACT,
        )  # fmt: skip
    else:
        low = times(low.to(tl.float32), factor[:, None])
        high = times(high.to(tl.float32), factor[:, None])
    if BIAS:
        low += tl.load(bias + cols, mask=cols < width, other=0.0).to(tl.float32)[None, :]
        high += tl.load(bias + HALF + cols, mask=cols + HALF < width, other=0.0).to(tl.float32)[
            None, :
        ]
    return low, high


@triton.jit
def _normed(
    low, high, gains, eps, mask, d, D: tl.constexpr, HB: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Both halves [M, HB] of each row over the row's root mean square, times gains [D]."""
    inside = d < D // 2
    low = tl.where(mask, low, 0.0)
    high = tl.where(mask, high, 0.0)
    squares = sums(times(low, low), M, HB) + sums(times(high, high), M, HB)
    inverse = tl.rsqrt(squares / D + eps)[:, None]
    low *= inverse * tl.load(gains + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    high *= inverse * tl.load(gains + D // 2 + d, mask=inside, other=0.0).to(tl.float32)[None, :]
    return low, high


@triton.jit(do_not_specialize=["module", "layer_offset"])
def _rotary(
    qkv,  # [N, (HEADS + 2 KV_HEADS) D], rows qkv_stride apart
    bias,
    head_norms,  # [2, D] of q and k where HEAD_NORM
    angles,  # [positions, D] float32
    positions,  # [N] int64
    slots,  # [N] int64: physical page x P + place in it
    cache,  # the arena, keys and values
    squares, eps, head_eps, part, arena, entries, rows, module, num_modules, num_rows, qkv_stride,
    layer_offset, page_elements, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr,
    HB: tl.constexpr,  # D / 2, next power of two
    HEAD_NORM: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, H: tl.constexpr,
    PARTS: tl.constexpr, LORA: tl.constexpr, SPLIT: tl.constexpr,
    STRIDE: tl.constexpr, RCAP: tl.constexpr, M: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(1)
    n = block_of(rows, s, num_rows, M, LORA)
    t, head, first, width = _slice_of(tl.program_id(0), HEADS, KV_HEADS, D)
    HALF: tl.constexpr = D // 2
    d = tl.arange(0, HB)
    cols = head * D + d
    mask = (n >= 0)[:, None] & (d < HALF)[None, :]
    position = tl.load(positions + tl.maximum(n, 0), mask=n >= 0, other=0)
    slot = tl.load(slots + tl.maximum(n, 0), mask=n >= 0, other=0)
    angle = angles + position[:, None] * D + d[None, :]
    cos = tl.load(angle, mask=mask, other=0.0)
    sin = tl.load(angle + HALF, mask=mask, other=0.0)
    source = qkv + tl.maximum(n, 0)[:, None] * qkv_stride + (first + cols)[None, :]
    entry = entries + (s.to(tl.int64) * num_modules + module + t) * 6
    low, high = _projected(
        source, bias + first, squares, eps, part + t * RCAP, arena, entry, n, mask, cols, width,
        num_rows, HALF, BIAS, NORM, H, PARTS, LORA, SPLIT, STRIDE, RCAP, M, EXACT,
    )  # fmt: skip
    if t < 2:
        if HEAD_NORM:
            low, high = _normed(low, high, head_norms + t * D, head_eps, mask, d, D, HB, M)
        # Left to itself, the compiler rounds another product in each kernel.
        turned = tl.fma(low, cos, -times(high, sin))
        high = tl.fma(high, cos, times(low, sin))
        low = turned
    low = low.to(cache.dtype.element_ty)
    high = high.to(cache.dtype.element_ty)
    if t == 0:
        tl.store(source, low, mask=mask)
        tl.store(source + HALF, high, mask=mask)
    else:
        place = (slot // P) * page_elements + layer_offset + (slot % P) * D
        place += ((t - 1) * KV_HEADS + head) * (P * D)
        where = cache + tl.multiple_of(place, [HALF])[:, None] + d[None, :]
        tl.store(where, low, mask=mask)
        tl.store(where + HALF, high, mask=mask)


def rotate_and_store(
    qkv: torch.Tensor,
    cache: torch.Tensor,
    heads: Heads,
    layer: int,
    angles: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    squares: Squares | None = None,
    bias: torch.Tensor | None = None,
    head_norms: torch.Tensor | None = None,
    head_eps: float = 0.0,
    term: Term | None = None,
    tile: Tile = HEAD,
) -> None:
    """qkv [N, (heads + 2 KV heads) D]: query columns are rotated in place; cache is the arena. The
    width of `tile` is a head's."""
    args = rowwise(qkv, term)
    pointer, eps, norm = normalised(squares, qkv, term)
    _rotary[(heads.num_heads + 2 * heads.num_kv_heads, args.num_blocks)](
        qkv,
        qkv if bias is None else bias,
        qkv if head_norms is None else head_norms,
        angles,
        positions,
        slots,
        cache,
        pointer,
        eps,
        head_eps,
        *args.pointers,
        args.module,
        args.num_modules,
        qkv.shape[0],
        qkv.stride(0),
        heads.layer_offset(layer),
        heads.page_elements,
        HEADS=heads.num_heads,
        KV_HEADS=heads.num_kv_heads,
        D=heads.dim,
        P=heads.page_tokens,
        HB=triton.next_power_of_2(heads.dim // 2),
        HEAD_NORM=head_norms is not None,
        BIAS=bias is not None,
        num_warps=tile.warps,
        **norm,
        **args.constants,
    )
