"""The grouped adapter term as plain loops in float64, and page moves one by one: what every faster
path is tested against."""

from __future__ import annotations

import torch

from kernels import table as T


def linear(
    x: torch.Tensor,
    y: torch.Tensor,
    arena: torch.Tensor,
    table: torch.Tensor,
    adapters: list[int],
    module: int,
) -> torch.Tensor:
    """y plus the adapter term of `module`, in float64.

    x [N, in], y [N, out], arena [elements], table as in `kernels.table`, adapters[n] of row n.
    """
    out = y.double().clone()
    scale = T.scales(table)
    for n, adapter in enumerate(adapters):
        if adapter < 0 or table[adapter, module, T.RANK] == 0:
            continue
        entry = table[adapter, module].tolist()
        for r in range(entry[T.RANK]):
            a = entry[T.A] + r * x.shape[1]
            b = entry[T.B] + r * y.shape[1]
            h = torch.dot(x[n].double(), arena[a : a + x.shape[1]].double())
            out[n] += scale[adapter, module].double() * h * arena[b : b + y.shape[1]].double()
        _add_bias(out[n], arena, entry, float(scale[adapter, module]))
    return out


def embedding(
    tokens: list[int],
    y: torch.Tensor,
    arena: torch.Tensor,
    table: torch.Tensor,
    adapters: list[int],
    module: int,
) -> torch.Tensor:
    """y plus the adapter term of a lookup of `tokens`, in float64. y [N, out]."""
    out = y.double().clone()
    scale = T.scales(table)
    for n, adapter in enumerate(adapters):
        if adapter < 0:
            continue
        entry = table[adapter, module].tolist()
        for r in range(entry[T.RANK]):
            h = arena[entry[T.A] + tokens[n] * entry[T.RANK] + r].double()
            b = entry[T.B] + r * y.shape[1]
            out[n] += scale[adapter, module].double() * h * arena[b : b + y.shape[1]].double()
    return out


def _add_bias(row: torch.Tensor, arena: torch.Tensor, entry: list[int], scale: float) -> None:
    if entry[T.BIAS]:
        row += scale * arena[entry[T.BIAS] : entry[T.BIAS] + len(row)].double()


def moved(pages: torch.Tensor, moves: list[tuple[int, int, int]]) -> torch.Tensor:
    """pages [n, elements] after moves (source, target, num) in order."""
    out = pages.clone()
    for source, target, num in moves:
        out[target : target + num] = out[source : source + num].clone()
    return out
