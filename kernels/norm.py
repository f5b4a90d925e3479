"""RMS norm without a pass of its own, and with one for the head.

Between layers the norm is split. `kernels.residual` leaves x = residual * weight, not yet divided,
and the partial sums of squares of each row; projections are linear, so whoever reads a projection
of x multiplies by the row's factor 1 / rms (`kernels.tile.norm_factor`).

`norm_rows` does it in one, for the few rows that reach the head::

    out[i, h] = r[index[i], h] * weight[h] / sqrt(mean(r[index[i]]^2) + eps)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Squares:
    """parts [N, P] float32: partial sums of squares of rows of `size` elements."""

    parts: torch.Tensor
    size: int
    eps: float

    @property
    def num_parts(self) -> int:
        return self.parts.shape[1]


@triton.jit
def _norm_rows(
    r,  # [T, H]
    index,  # [N] int64
    weight,  # [H]
    out,  # [N, H]
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK)
    x = tl.load(r + tl.load(index + i) * H + h, mask=h < H, other=0.0).to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x) / H + eps)
    x *= tl.load(weight + h, mask=h < H, other=0.0).to(tl.float32)
    tl.store(out + i * H + h, x.to(out.dtype.element_ty), mask=h < H)


def norm_rows(
    r: torch.Tensor, index: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """r [T, H] contiguous, index [N] int64, out [N, H]: written."""
    hidden = r.shape[1]
    block = triton.next_power_of_2(hidden)
    _norm_rows[(len(index),)](
        r, index, weight, out, eps, H=hidden, BLOCK=block, num_warps=min(8, max(1, block // 512))
    )
