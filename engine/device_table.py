"""The adapter table on the device, at a fixed address, with room for every adapter of the arena."""

from __future__ import annotations

import torch

from engine.adapters.table import entry_row
from engine.plan import TableEntry
from kernels import table as T

ROWS_A_STEP = 32
"""Entries of a step that go through pinned memory; more in one step are copied the slower way."""


class DeviceTable:
    """tensor [G, M, 6] on the device. An adapter takes at least one page, so there are never more
    than pages."""

    def __init__(
        self,
        num_adapters: int,
        num_modules: int,
        page_elements: int,
        num_slots: int,
        device: torch.device,
    ) -> None:
        size = (num_adapters, num_modules, T.COLUMNS)
        self.tensor = torch.zeros(size, dtype=torch.int64, device=device)  # all absent
        shape = (num_slots, ROWS_A_STEP, num_modules, T.COLUMNS)
        self._slots = torch.zeros(shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._page_elements = page_elements

    def set(self, entries: tuple[TableEntry, ...], slot: int) -> None:
        """Enqueue the plan's entries. `slot` of the ring is free."""
        for i, entry in enumerate(entries):
            row = entry_row(entry, self.tensor.shape[1], self._page_elements)
            if i < ROWS_A_STEP:
                staged = self._slots[slot, i]
                staged.copy_(row)
                row = staged
            self.tensor[entry.adapter].copy_(row, non_blocking=True)
