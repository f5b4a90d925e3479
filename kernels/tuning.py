"""Block sizes of the GPU kernels, as data.

They are read from `kernels/tunings/`, a file for each GPU that was measured; `python -m
kernels.tune` writes the present GPU's. Any other GPU from Ampere on gets those of `DEFAULT` with
its own number of multiprocessors: their tiles fit in 64 KiB of shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton

from kernels.tile import RANKS

FOLDER = Path(__file__).parent / "tunings"
DEFAULT = "NVIDIA H200"


@dataclass(frozen=True, slots=True)
class Tile:
    """width: columns (or k) a program handles at a time. warps, stages: Triton's."""

    width: int
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, slots=True)
class Tuning:
    """num_sms: multiprocessors that a launch should fill. waves: programs of the shrink for each
    of them. max_parts: most parts that it cuts k into, long_parts: where k is above LONG. residual:
    whole parts of a norm wide, see `kernels.residual`, so that all graphs compute it alike."""

    num_sms: int = 132
    waves: int = 8
    max_parts: int = 4
    long_parts: int = 4
    shrink: Tile = Tile(256, 4, 4)
    expand: Tile = Tile(256, 4)
    gate: Tile = Tile(256, 4)
    residual: Tile = Tile(256, 4)
    rotary: Tile = Tile(0, 4)

    def num_parts(self, num_programs: int, k: int, most: int) -> int:
        """Parts of k for a shrink of that many programs a part; a power of two, at most `most`."""
        parts = 1
        limit = min(
            most, self.long_parts if k > LONG else self.max_parts, -(-k // self.shrink.width)
        )
        while 2 * parts <= limit and 2 * parts * num_programs <= self.waves * self.num_sms:
            parts *= 2
        return parts

    def num_chunks(self, num_programs: int, rank_cap: int) -> int:
        """Programs that a shrink deals an adapter's ranks to, each RANKS at a time, where it has so
        many programs otherwise. Most will find nothing to do: as many as the launch takes well."""
        chunks = 1
        limit = min(MAX_CHUNKS, rank_cap // RANKS.value)
        while 2 * chunks <= limit and 2 * chunks * num_programs <= self.waves * self.num_sms:
            chunks *= 2
        return chunks


LONG = 8192
MAX_CHUNKS = 4
SMALL_RANK = 16
TILES = ("shrink", "expand", "gate", "residual", "rotary")


@dataclass(frozen=True, slots=True)
class Tunings:
    """of: those of graphs of up to so many blocks of so many rows, by (rows, blocks); rows 0:
    without adapters."""

    gpu: str
    of: Mapping[tuple[int, int], Tuning] = field(default_factory=dict)

    def choose(self, block_rows: int, num_blocks: int) -> Tuning:
        """That of the smallest graphs that are no smaller, else of the largest."""
        fitting = [key for key in self.of if key[0] >= block_rows and key[1] >= num_blocks]
        return self.of[min(fitting, default=max(self.of))]

    @classmethod
    def read(cls, path: Path) -> Tunings:
        words = json.loads(path.read_text())
        of = {}
        for line in words["tunings"]:
            key = (line.pop("block_rows"), line.pop("blocks"))
            fields: dict[str, Any] = {name: Tile(**line.pop(name)) for name in TILES}
            of[key] = Tuning(num_sms=words["num_sms"], **line, **fields)
        return cls(words["gpu"], of)

    def write(self, path: Path) -> None:
        """One line a tuning."""
        lines = []
        for (block_rows, blocks), tuning in sorted(self.of.items()):
            fields: dict[str, Any] = {"block_rows": block_rows, "blocks": blocks, **asdict(tuning)}
            del fields["num_sms"]
            lines.append("  " + json.dumps(fields))
        head = f'{{"gpu": "{self.gpu}", "num_sms": {next(iter(self.of.values())).num_sms}, '
        path.write_text(head + '"tunings": [\n' + ",\n".join(lines) + "\n]}\n")


def tuning_for(block_rows: int, num_blocks: int = 1024) -> Tuning:
    """Of graphs of that many blocks, each of up to `block_rows` rows; 0: without adapters. On the
    present GPU, the default one's where there is none."""
    return present_tunings().choose(block_rows, num_blocks)


@cache
def present_tunings() -> Tunings:
    if not torch.cuda.is_available():
        return Tunings.read(path_of(DEFAULT))
    gpu = torch.cuda.get_device_properties()
    if path_of(gpu.name).exists():
        return Tunings.read(path_of(gpu.name))
    num_sms = gpu.multi_processor_count
    of = Tunings.read(path_of(DEFAULT)).of
    return Tunings(gpu.name, {key: replace(t, num_sms=num_sms) for key, t in of.items()})


def path_of(gpu: str) -> Path:
    return FOLDER / (gpu.lower().replace(" ", "-") + ".json")


def rank_caps(max_rank: int) -> tuple[int, ...]:
    """Largest ranks that graphs are captured for, ascending, where adapters have up to max_rank.
    Most have 16 at most, and code for more would cost them up to a fifth more."""
    most = max(SMALL_RANK, triton.next_power_of_2(max_rank))
    return (SMALL_RANK,) if most == SMALL_RANK else (SMALL_RANK, most)


def block_rows_for(num_rows: int, num_adapters: int) -> int:
    """Rows of a block that suit so many rows over so many adapters: large blocks read an adapter
    once for many rows, blocks of one row waste nothing where adapters are all different."""
    mean = num_rows / max(1, num_adapters)
    return next((m for least, m in ((16, 16), (8, 8), (2.5, 4)) if mean >= least), 1)
