"""Block sizes of the GPU kernels, as data.

`tuning_for` gives those for blocks of so many rows. They were measured on an H200 and are sensible
on any NVIDIA GPU from Ampere on. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tile:
    """width: columns (or k) a program handles at a time. warps, stages: Triton's."""

    width: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True)
class Tuning:
    """num_sms: multiprocessors that a launch should fill. waves: programs of the shrink for each
    of them. max_parts: most parts that it cuts k into. residual: whole parts of a norm wide, see
    `kernels.residual`, so that all graphs compute it alike."""

    num_sms: int = 132
    waves: int = 8
    max_parts: int = 8
    shrink: Tile = Tile(256, 4, 4)
    expand: Tile = Tile(256, 4, 2)
    gate: Tile = Tile(128, 4, 2)
    residual: Tile = Tile(256, 8, 2)
    rotary_warps: int = 4

    def num_parts(self, num_programs: int, k: int, most: int) -> int:
        """Parts of k for a shrink of that many programs a part; a power of two, at most `most`."""
        parts = 1
        limit = min(most, self.max_parts, -(-k // self.shrink.width))
        while 2 * parts <= limit and 2 * parts * num_programs <= self.waves * self.num_sms:
            parts *= 2
        return parts


BASE = Tuning(gate=Tile(256, 4, 2), residual=Tile(256, 4, 2))
"""Without adapters."""

SINGLE = Tuning(
    max_parts=4,
    expand=Tile(512, 2, 2),
    gate=Tile(256, 1, 2),
    residual=Tile(512, 2, 2),
    rotary_warps=1,
)
"""Blocks of one row: 256 columns a warp, see `kernels.tile`."""

FEW = Tuning(max_parts=4, gate=Tile(64, 4, 2), residual=Tile(256, 16, 2))
"""Few blocks of several rows: narrow tiles fill the chip better."""
FEW_BLOCKS = 8

BY_BLOCK_ROWS = {
    4: Tuning(max_parts=4, gate=Tile(256, 4, 2), residual=Tile(256, 4, 2)),
    8: Tuning(max_parts=4, residual=Tile(256, 4, 2)),
    16: Tuning(max_parts=4, gate=Tile(256, 8, 2)),
    64: Tuning(shrink=Tile(64, 4, 3), expand=Tile(128, 4, 2), gate=Tile(64, 4, 2)),
}


def tuning_for(block_rows: int, num_blocks: int = 1024) -> Tuning:
    """Of graphs of that many blocks, each of up to `block_rows` rows; 0: without adapters."""
    if block_rows == 0:
        return BASE
    if block_rows == 1:
        # Many blocks fill the chip without cutting k, and each part is read again.
        return SINGLE if num_blocks <= 64 else replace(SINGLE, max_parts=2)
    if 4 < block_rows <= 16 and num_blocks <= FEW_BLOCKS:
        return FEW
    return BY_BLOCK_ROWS[min((m for m in BY_BLOCK_ROWS if m >= block_rows), default=64)]


REGISTERS = {
    "shrink": {1: 80, 16: 64},
    "rotary": {1: 80, 16: 72},
    "residual": {4: 80, 8: 80, 16: 80},
    "gate": {1: 168, 4: 72, 8: 80, 16: 72},
}


def max_registers(kernel: str, block_rows: int, rank_cap: int) -> int | None:
    """Registers of a thread that a kernel may use, None: as many as it likes.

    The loop over ranks above 16 wants more than all else; what doesn't fit is spilled there, and
    batches of small ranks keep their occupancy.
    """
    return REGISTERS[kernel].get(block_rows) if rank_cap > 16 else None


def block_rows_for(num_rows: int, num_adapters: int) -> int:
    """Rows of a block that suit so many rows over so many adapters: large blocks read an adapter
    once for many rows, blocks of one row waste nothing where adapters are all different."""
    mean = num_rows / max(1, num_adapters)
    return next((m for least, m in ((16, 16), (8, 8), (2.5, 4)) if mean >= least), 1)
