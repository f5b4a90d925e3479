"""Moves on the device do what the CPU's do."""

from __future__ import annotations

import pytest
import torch

from engine.cpu_runner import move_pages
from engine.device_moves import DeviceMoves
from engine.plan import Move

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled there")
MOVES = (Move(3, 9, 1), Move(5, 2, 1), Move(10, 12, 5), Move(12, 11, 4), Move(4, 4, 2))


def test_a_steps_moves_in_order():
    arena = torch.randn(20, 64).to(torch.bfloat16)
    wanted = arena.clone()
    moves = DeviceMoves(20, 3, torch.device("cpu"))
    for slot, step in enumerate((MOVES, MOVES[:2], MOVES[1:])):
        for move in step:
            move_pages(wanted, move)
        moves.enqueue(arena, step, slot)
        assert torch.equal(arena.view(torch.int16), wanted.view(torch.int16))


def test_more_pages_than_a_step_may_move_are_refused():
    with pytest.raises(ValueError, match="words in a stage"):
        DeviceMoves(4, 3, torch.device("cpu")).enqueue(torch.zeros(9, 64), (Move(0, 4, 5),), 0)
