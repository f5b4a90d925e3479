"""Attention over paged keys and values in the arena: prompt chunks and decoding rows in one launch.

Semantics, for query head h of token t at position at[t] of a sequence with pages `pages[row]`::

    out[t, h] = sum over n of softmax over n (scale * q[t, h] . k[n]) v[n]
                n <= at[t], and n > at[t] - window where there is a window

with k[n], v[n] of KV head h // (heads / KV heads) at page pages[row][n // P], place n % P; a page
is [layer][k, v][KV head][P][D]. Work is cut into tiles of up to BQ tokens of one sequence; query
heads of one KV head are handled together as rows of a tile, so that keys are loaded once for them.
Grid (tile, KV head, part of the context); a tile without tokens ends at once. Parts leave
unnormalised sums that `_combine` joins. Keys beyond a sequence's end are never loaded. A
place is a multiple of D: told so, the compiler loads 16 bytes at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.rotary import Heads
from kernels.tile import interpreted
from kernels.tuning import Tile

LOG2E = 1.4426950408889634
DECODE = Tile(32, 1, 3)
CHUNKS = Tile(64, 4, 3)


@dataclass(frozen=True, slots=True)
class Tiles:
    """words [4, n] int32: first token, number of tokens, row of `pages`, and the context up to and
    including the last token. tokens: the most that a tile has."""

    words: torch.Tensor
    tokens: int


@triton.jit
def _times(a, b, EXACT: tl.constexpr):
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b)


@triton.jit
def _see(
    top, total, acc, qs, keys, values, n, at, scale, window, WINDOW: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """The running softmax after keys n as well: largest score, sum of weights, weighted values."""
    score = _times(qs, tl.trans(keys), EXACT) * scale
    seen = n[None, :] <= at[:, None]
    if WINDOW:
        seen = seen & (n[None, :] > at[:, None] - window)
    score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    # A row that has seen no key yet: -inf less -inf would be no number.
    safe = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.exp2(score - safe[:, None])
    fade = tl.exp2(top - safe)
    total = total * fade + tl.sum(weight, 1)
    acc = acc * fade[:, None] + _times(weight.to(values.dtype), values, EXACT)
    return higher, total, acc


@triton.jit(do_not_specialize=["layer_offset", "num_tiles", "window", "num_rows"])
def _attend(
    q,  # [T, ...], rows q_stride apart: query heads first
    cache,  # the arena
    tiles,  # [4, num_tiles] int32
    pages,  # [rows, max_pages] int32
    out,  # [T, HEADS * D]
    part,  # [SPLIT, num_rows, HEADS, D] float32 where SPLIT > 1
    sums,  # [SPLIT, num_rows, HEADS, 2] float32: largest score, sum of weights
    layer_offset, num_tiles, num_rows, max_pages, page_elements, q_stride, scale, window,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    DB: tl.constexpr,  # D, next power of two
    GP: tl.constexpr,  # query heads of a KV head, next power of two
    BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    i, kv = tl.program_id(0), tl.program_id(1)
    count = tl.load(tiles + num_tiles + i)
    if count > 0:
        end = tl.load(tiles + 3 * num_tiles + i)
        m = tl.arange(0, BM)
        d = tl.arange(0, DB)
        query = m // GP
        head = kv * (HEADS // KV_HEADS) + m % GP
        token = (tl.load(tiles + i) + query).to(tl.int64)
        valid = (query < count) & (m % GP < HEADS // KV_HEADS)
        inside = valid[:, None] & (d < D)[None, :]
        where = token[:, None] * q_stride + head[:, None] * D + d[None, :]
        qs = tl.load(q + where, mask=inside, other=0.0)
        at = end - count + query
        lo = 0
        if WINDOW:
            lo = tl.maximum(0, end - count - window + 1) // BN * BN
        per = (end - lo + BN * SPLIT - 1) // (BN * SPLIT) * BN
        start = lo + tl.program_id(2) * per
        top = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, DB), tl.float32)
        of_row = pages + tl.load(tiles + 2 * num_tiles + i).to(tl.int64) * max_pages
        for begin in range(start, tl.minimum(start + per, end), BN):
            n = begin + tl.arange(0, BN)
            page = tl.load(of_row + n // P, mask=n < end, other=0).to(tl.int64)
            place = tl.multiple_of(page * page_elements + layer_offset + (kv * P + n % P) * D, [D])
            known = (n < end)[:, None] & (d < D)[None, :]
            keys = tl.load(cache + place[:, None] + d[None, :], mask=known, other=0.0)
            value = cache + place[:, None] + KV_HEADS * P * D + d[None, :]
            values = tl.load(value, mask=known, other=0.0)
            top, total, acc = _see(
                top, total, acc, qs, keys, values, n, at, scale, window, WINDOW, EXACT
            )
        if SPLIT == 1:
            answer = (acc / total[:, None]).to(out.dtype.element_ty)
            where = token[:, None] * (HEADS * D) + head[:, None] * D + d[None, :]
            tl.store(out + where, answer, mask=inside)
        else:
            where = (tl.program_id(2).to(tl.int64) * num_rows + token) * HEADS + head
            tl.store(part + where[:, None] * D + d[None, :], acc, mask=inside)
            tl.store(sums + where * 2, top, mask=valid)
            tl.store(sums + where * 2 + 1, total, mask=valid)


@triton.jit(do_not_specialize=["num_rows"])
def _combine(
    part,  # [SPLIT, num_rows, HEADS, D]
    sums,  # [SPLIT, num_rows, HEADS, 2]
    out,  # [num_rows, HEADS * D]
    num_rows,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DB: tl.constexpr,
    SPLIT: tl.constexpr,
):
    n = tl.program_id(0)
    h = tl.program_id(1)
    z = tl.arange(0, SPLIT)
    d = tl.arange(0, DB)
    place = (z.to(tl.int64) * num_rows + n) * HEADS + h
    top = tl.load(sums + place * 2)
    share = tl.exp2(top - tl.max(top))
    total = tl.sum(share * tl.load(sums + place * 2 + 1))
    acc = tl.load(part + place[:, None] * D + d[None, :], mask=(d < D)[None, :], other=0.0)
    # Nothing was left for a row of padding.
    answer = tl.sum(acc * share[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(
        out + (n.to(tl.int64) * HEADS + h) * D + d, answer.to(out.dtype.element_ty), mask=d < D
    )


class PagedAttention:
    """heads and pages of one arena, with workspaces for decode launches of up to max_rows rows.
    decode: keys that a program handles at a time in a decode launch; chunks: in others."""

    def __init__(
        self,
        heads: Heads,
        arena: torch.Tensor,
        max_rows: int,
        decode: Tile = DECODE,
        chunks: Tile = CHUNKS,
    ) -> None:
        self._heads = heads
        self._decode, self._chunks = decode, chunks
        self._arena = arena
        size = max(n * self.num_parts(n) for n in range(1, max_rows + 1))
        shape = (size * heads.num_heads, heads.dim + 2)
        work = torch.zeros(shape, dtype=torch.float32, device=arena.device)
        self._part = work.view(-1)[: shape[0] * heads.dim]
        self._sums = work.view(-1)[shape[0] * heads.dim :]
        self._exact = arena.dtype == torch.float32 or interpreted()

    def num_parts(self, rows: int) -> int:
        """Into how many a decode launch cuts each context: a power of two that fills the chip."""
        parts = 1
        while parts < 32 and 2 * parts * rows * self._heads.num_kv_heads <= 1024:
            parts *= 2
        return parts

    def attend(
        self,
        q: torch.Tensor,
        tiles: Tiles,
        pages: torch.Tensor,
        layer: int,
        window: int | None,
        out: torch.Tensor,
    ) -> None:
        """out [T, heads x D] for q [T, at least heads x D]; this layer's keys are in the arena.

        Tiles of one token are a decode launch: tile i is token i.
        """
        heads, num_tiles = self._heads, tiles.words.shape[1]
        group = triton.next_power_of_2(heads.num_heads // heads.num_kv_heads)
        parts = self.num_parts(len(q)) if tiles.tokens == 1 else 1
        wide = triton.next_power_of_2(heads.dim)
        tile = self._decode if tiles.tokens == 1 else self._chunks
        _attend[(num_tiles, heads.num_kv_heads, parts)](
            q,
            self._arena,
            tiles.words,
            pages,
            out,
            self._part,
            self._sums,
            heads.layer_offset(layer),
            num_tiles,
            len(q),
            pages.shape[1],
            heads.page_elements,
            q.stride(0),
            heads.dim**-0.5 * LOG2E,
            window or 0,
            HEADS=heads.num_heads,
            KV_HEADS=heads.num_kv_heads,
            D=heads.dim,
            DB=wide,
            P=heads.page_tokens,
            GP=group,
            BM=max(16, tiles.tokens * group),
            BN=32 if self._exact else tile.width,
            SPLIT=parts,
            WINDOW=window is not None,
            EXACT=self._exact,
            num_warps=tile.warps,
            num_stages=1 if self._exact else tile.stages,
        )
        if parts > 1:
            _combine[(len(q), heads.num_heads)](
                self._part,
                self._sums,
                out,
                len(q),
                HEADS=heads.num_heads,
                D=heads.dim,
                DB=wide,
                SPLIT=parts,
                num_warps=1,
            )
