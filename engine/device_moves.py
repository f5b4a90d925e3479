"""A plan's moves on the device: one small copy and one kernel, whatever their number."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.pinned_stage import PinnedStage
from engine.plan import Move
from kernels.moves import COLUMNS, move_pages, order_copies


class DeviceMoves:
    """max_pages: copied in one step at most. num_slots: see PinnedStage."""

    def __init__(self, max_pages: int, num_slots: int, device: torch.device) -> None:
        self._stage = PinnedStage(COLUMNS * (max_pages + 1), num_slots, device)

    def enqueue(self, arena: torch.Tensor, moves: Sequence[Move], slot: int) -> None:
        """Copy pages of arena [pages, elements], move after move. `slot` of the ring is free.

        Raises ValueError where the moves have more pages than a step may.
        """
        orders = order_copies((move.source, move.target, move.num_pages) for move in moves)
        self._stage.begin(slot)
        move_pages(arena, self._stage.put({"orders": orders})["orders"])
