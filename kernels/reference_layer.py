"""The fused kernels' semantics in float64, one row at a time: what they are tested against."""

from __future__ import annotations

import math

import torch


def factor(r: torch.Tensor, eps: float) -> torch.Tensor:
    """[N, 1] 1 / root mean square of each row."""
    return 1 / torch.sqrt((r.double() ** 2).mean(-1, keepdim=True) + eps)


def silu_gate(y: torch.Tensor) -> torch.Tensor:
    """[N, I] for y [N, 2 I]."""
    gate, up = y.double().chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


def rotate(
    v: torch.Tensor,
    positions: list[int],
    angles: torch.Tensor,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """v [N, heads, D], angles [positions, D]: D/2 cosines, then sines. norm [D]: of each head."""
    out = v.double().clone()
    if norm is not None:
        out = out * factor(out, eps) * norm.double()
    half = v.shape[-1] // 2
    for n, position in enumerate(positions):
        cos, sin = angles[position, :half].double(), angles[position, half:].double()
        low, high = out[n, :, :half].clone(), out[n, :, half:].clone()
        out[n, :, :half] = low * cos - high * sin
        out[n, :, half:] = high * cos + low * sin
    return out


def attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, last: int, window: int | None
) -> torch.Tensor:
    """[heads, D] of one query q [heads, D] at `last` over keys and values [C, KV heads, D]."""
    out = torch.empty_like(q, dtype=torch.float64)
    group = q.shape[0] // keys.shape[1]
    first = 0 if window is None else max(0, last - window + 1)
    for head in range(q.shape[0]):
        k = keys[first : last + 1, head // group].double()
        v = values[first : last + 1, head // group].double()
        scores = (k @ q[head].double()) / math.sqrt(q.shape[1])
        out[head] = torch.softmax(scores, 0) @ v
    return out
