"""Block sizes of the GPU kernels, as data.

`tuning_for` gives those for blocks of so many rows. They were measured on an H200 and are sensible
on any NVIDIA GPU from Ampere on; `python -m kernels.bench tune` measures on the GPU at hand.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """width: columns (or k) a program handles at a time. warps, stages: Triton's."""

    width: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True)
class Tuning:
    """num_sms: multiprocessors that a launch should fill. waves: programs of the shrink for each
    of them. max_parts: most parts that it cuts k into. programmatic: kernels may begin while the
    one ahead ends."""

    num_sms: int = 132
    waves: int = 8
    max_parts: int = 8
    shrink: Tile = Tile(256, 4, 4)
    expand: Tile = Tile(256, 4, 2)
    gate: Tile = Tile(128, 4, 2)
    residual: Tile = Tile(128, 4, 2)
    rotary_warps: int = 4
    programmatic: bool = False

    def num_parts(self, num_programs: int, k: int, most: int) -> int:
        """Parts of k for a shrink of that many programs a part; a power of two, at most `most`."""
        parts = 1
        limit = min(most, self.max_parts, -(-k // self.shrink.width))
        while 2 * parts <= limit and 2 * parts * num_programs <= self.waves * self.num_sms:
            parts *= 2
        return parts


BASE = Tuning(gate=Tile(256, 4, 2), residual=Tile(256, 4, 2))
"""Without adapters."""

BY_BLOCK_ROWS = {
    1: Tuning(
        expand=Tile(512, 2, 2), gate=Tile(512, 2, 2), residual=Tile(256, 1, 2), rotary_warps=1
    ),
    4: Tuning(gate=Tile(256, 4, 2), residual=Tile(256, 4, 2)),
    8: Tuning(),
    16: Tuning(),
    64: Tuning(
        shrink=Tile(64, 4, 3), expand=Tile(128, 4, 2), gate=Tile(64, 4, 2), residual=Tile(128, 4, 2)
    ),
}
"""One row a block: 256 columns a warp, see `kernels.tile`."""


def tuning_for(block_rows: int) -> Tuning:
    """Of graphs whose blocks have up to `block_rows` rows; 0: without adapters."""
    if block_rows == 0:
        return BASE
    return BY_BLOCK_ROWS[min((m for m in BY_BLOCK_ROWS if m >= block_rows), default=64)]
