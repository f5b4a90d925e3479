"""Launch arguments that the fused kernels have in common: with an adapter term or without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from kernels.lora_gpu import Term
from kernels.norm import Squares
from kernels.tile import is_exact

BASE_ROWS = 8
"""Rows a program handles where no adapter decides it."""


@dataclass(frozen=True, slots=True)
class Rowwise:
    """pointers: part, arena, entries, rows; any address where they are not read."""

    num_blocks: int
    pointers: tuple[torch.Tensor, ...]
    module: int
    num_modules: int
    constants: dict[str, Any]


def rowwise(like: torch.Tensor, term: Term | None) -> Rowwise:
    """For a kernel over the rows of `like` [N, ...] that adds `term`."""
    if term is None:
        constants: dict[str, Any] = {"LORA": False, "SPLIT": 1, "STRIDE": 1, "RCAP": 16}
        constants |= {"M": BASE_ROWS, "EXACT": is_exact(like.dtype)}
        blocks = triton.cdiv(like.shape[0], BASE_ROWS)
        return Rowwise(blocks, (like,) * 4, 0, 1, constants)
    constants = {
        "LORA": True,
        "SPLIT": term.num_parts,
        "STRIDE": term.stride,
        "RCAP": term.rank_cap,
        "M": term.blocks.block_rows,
        "EXACT": term.exact,
    }
    return Rowwise(
        term.blocks.num_blocks,
        (term.part, term.arena, term.entries, term.blocks.rows),
        term.module,
        term.entries.shape[1],
        constants,
    )


def normalised(
    squares: Squares | None, like: torch.Tensor, term: Term | None = None
) -> tuple[torch.Tensor, float, Any]:
    """(pointer, eps, constants) of the factor that a row's projection is multiplied by."""
    if squares is None:
        return like, 0.0, {"NORM": False, "H": 1, "PARTS": 1}
    if term is not None and term.factors is not None:
        return term.factors, squares.eps, {"NORM": True, "H": squares.size, "PARTS": 0}
    constants = {"NORM": True, "H": squares.size, "PARTS": squares.num_parts}
    return squares.parts, squares.eps, constants
