"""Biases added to a few of a step's logits.

Semantics: ``logits[index[i], token[i]] += bias[i]``, in float32. No (index, token) comes twice.
Nothing is allocated, and the number of biases sets the grid alone: see `kernels.token_counts`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit(
    do_not_specialize=["num"],
    do_not_specialize_on_alignment=["index", "token", "bias"],
)
def _add(
    logits,  # [N, V], rows stride apart
    index,  # [num] int64, -1: none
    token,  # [num] int64
    bias,  # [num] float64
    num,
    stride: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index + i, mask=i < num, other=-1)
    where = logits + row * stride + tl.load(token + i, mask=i < num, other=0)
    amount = tl.load(bias + i, mask=i < num, other=0.0).to(tl.float32)
    biased = tl.load(where, mask=row >= 0, other=0.0).to(tl.float32) + amount
    tl.store(where, biased.to(logits.dtype.element_ty), mask=row >= 0)


def add_biases(
    logits: torch.Tensor, index: torch.Tensor, token: torch.Tensor, bias: torch.Tensor
) -> None:
    """logits [N, V]: changed in place; index and token [n] int64, bias [n] float64."""
    grid = (triton.cdiv(len(index), BLOCK),)
    _add[grid](logits, index, token, bias, len(index), logits.stride(0), BLOCK=BLOCK, num_warps=4)
