"""The adapter table of the arena on the host: table entries in, offsets out."""

from __future__ import annotations

import torch

from engine.adapters.layout import ABSENT
from engine.plan import TableEntry
from kernels import table as T


def entry_row(entry: TableEntry, num_modules: int, page_elements: int) -> torch.Tensor:
    """[M, 6] of one adapter as in `kernels.table`: absolute offsets; zeros where it is gone."""
    row = torch.zeros(num_modules, T.COLUMNS, dtype=torch.int64)
    if entry.layout is None or not entry.layout.blocks:
        return row
    base = entry.start_page * page_elements
    blocks = entry.layout.blocks
    row[[block.module for block in blocks]] = torch.tensor(
        [
            [
                base + block.a,
                base + block.b,
                block.rank,
                T.scale_bits(block.scale),
                0 if block.bias == ABSENT else base + block.bias,
                0,
            ]
            for block in blocks
        ]
    )
    return row


class AdapterTable:
    """Rows by adapter index, grown as indices appear.

    tensor   [G, M, 6] as in `kernels.table`
    version  counts up whenever the tensor changes
    """

    def __init__(self, num_modules: int, page_elements: int) -> None:
        self.tensor = T.empty_table(8, num_modules)
        self.version = 0
        self._page_elements = page_elements

    def set(self, entry: TableEntry) -> None:
        """Write one adapter's row, absolute offsets; layout None clears it."""
        self.version += 1
        while entry.adapter >= len(self.tensor):
            more = T.empty_table(len(self.tensor), self.tensor.shape[1])
            self.tensor = torch.cat([self.tensor, more])
        row = entry_row(entry, self.tensor.shape[1], self._page_elements)
        self.tensor[entry.adapter] = row
