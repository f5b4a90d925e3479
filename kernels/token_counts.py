"""What penalties know of a row: which tokens its prompt had, how often its outputs had each.

Semantics: ``counts[row, :] = 0`` and ``seen[row, :] = 0`` where a row begins; then, for each token
that it already has, ``counts[row, token] += is_output`` and ``seen[row, token] = 1``.

The sums are of integers, so the atomic ones don't depend on any order. Nothing is allocated, and
the numbers of rows and tokens set the grid alone: these run between captured graphs, at any time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit(do_not_specialize_on_alignment=["rows"])
def _clear(
    rows,  # [N] int64, -1: none
    counts,  # [rows, vocab] int32
    seen,  # [rows, vocab] uint8
    vocab: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.load(rows + tl.program_id(0))
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (token < vocab) & (row >= 0)
    tl.store(counts + row * vocab + token, tl.zeros((BLOCK,), tl.int32), mask=mask)
    tl.store(seen + row * vocab + token, tl.zeros((BLOCK,), tl.uint8), mask=mask)


@triton.jit(
    do_not_specialize=["num"],
    do_not_specialize_on_alignment=["rows", "tokens", "is_output"],
)
def _count(
    rows,  # [N] int64, -1: none
    tokens,  # [N] int64
    is_output,  # [N] int64, 0 or 1
    counts,  # [rows, vocab] int32
    seen,  # [rows, vocab] uint8
    num,
    vocab: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + i, mask=i < num, other=-1)
    place = row * vocab + tl.load(tokens + i, mask=i < num, other=0)
    output = tl.load(is_output + i, mask=i < num, other=0).to(tl.int32)
    tl.atomic_add(counts + place, output, mask=(row >= 0) & (output > 0), sem="relaxed")
    tl.store(seen + place, tl.full((BLOCK,), 1, tl.uint8), mask=row >= 0)


def clear_rows(rows: torch.Tensor, counts: torch.Tensor, seen: torch.Tensor) -> None:
    """rows [N] int64 (-1: none); counts [rows, V] int32 and seen [rows, V] bool, contiguous."""
    vocab = counts.shape[1]
    grid = (len(rows), triton.cdiv(vocab, BLOCK))
    _clear[grid](rows, counts, seen.view(torch.uint8), vocab, BLOCK=BLOCK, num_warps=4)


def count_tokens(
    rows: torch.Tensor,
    tokens: torch.Tensor,
    is_output: torch.Tensor,
    counts: torch.Tensor,
    seen: torch.Tensor,
) -> None:
    """rows, tokens, is_output [N] int64: a token of a row (-1: of none) each."""
    _count[(triton.cdiv(len(rows), BLOCK),)](
        rows,
        tokens,
        is_output,
        counts,
        seen.view(torch.uint8),
        len(rows),
        counts.shape[1],
        BLOCK=BLOCK,
        num_warps=4,
    )
