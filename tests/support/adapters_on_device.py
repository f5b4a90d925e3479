"""Adapters with random weights in an arena of their own, for kernel tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from kernels import table as T

ALIGN = 64


class RandomAdapters:
    """features[m] = (in, out). ranks[g][m]: rank of adapter g's module m; absent: not touched.

    Whatever no adapter owns is NaN. `lookup`: the module whose A is [in, rank].
    """

    def __init__(
        self,
        features: Sequence[tuple[int, int]],
        ranks: Sequence[Mapping[int, int]],
        *,
        dtype: torch.dtype = torch.float32,
        biased: Sequence[int] = (),
        lookup: int = -1,
        device: str = "cpu",
    ) -> None:
        self.features = np.array(features, np.int64)
        self.table = T.empty_table(max(1, len(ranks)), len(features))
        parts: list[torch.Tensor] = [torch.full((ALIGN,), torch.nan)]
        end = ALIGN

        def place(values: torch.Tensor) -> int:
            nonlocal end
            start, pad = end, -values.numel() % ALIGN
            parts.extend([values.reshape(-1), torch.full((pad,), torch.nan)])
            end += values.numel() + pad
            return start

        for g, of in enumerate(ranks):
            for m, rank in of.items():
                k, out = features[m]
                a = place(torch.randn(rank * k) / (1 if m == lookup else k**0.5))
                b = place(torch.randn(rank * out) / rank**0.5)
                bias = place(torch.randn(out)) if m in biased else 0
                scale = T.scale_bits(0.5 + 0.25 * ((g + m) % 4))
                self.table[g, m] = torch.tensor([a, b, rank, scale, bias, 0])
        self.arena = torch.cat(parts).to(dtype)
        self.on_device = self.arena.to(device)
        self.table_on_device = self.table.to(device)

    def terms(
        self,
        owners: Sequence[int],
        modules: Sequence[int],
        x: torch.Tensor,
        factor: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[N, sum of out] float64: the terms of x [N, in], times factor [N, 1] where there is one;
        biases are not. All rows of an adapter at once, for large sweeps."""
        arena, x = self.on_device, x.double()
        of_row = torch.tensor(owners, device=arena.device)
        columns = []
        for m in modules:
            k, width = self.features[m].tolist()
            out = torch.zeros(len(owners), width, dtype=torch.float64, device=arena.device)
            for g in set(owners) - {-1}:
                a, b, rank, _, bias, _ = self.table[g, m].tolist()
                rows = torch.nonzero(of_row == g).squeeze(1)
                h = x[rows] @ arena[a : a + rank * k].view(rank, k).double().t()
                term = h @ arena[b : b + rank * width].view(rank, width).double()
                if factor is not None:
                    term *= factor[rows].double()
                if bias:
                    term += arena[bias : bias + width].double()
                out[rows] = float(T.scales(self.table)[g, m]) * term
            columns.append(out)
        return torch.cat(columns, 1)
