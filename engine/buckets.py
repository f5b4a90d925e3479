"""Which captured graph serves a step. Pure; the graphs themselves are in `engine.graphs`.

A graph is captured for a `PassShape`: so many rows, grouped into so many blocks of one adapter each
(`kernels.blocks`), for adapters of such a reach. A step runs in the first shape that holds it; what
is left over is padding. Decode steps, in which every sequence has one token and samples it, have
shapes by rows; all others have shapes by tokens, with room for every row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.segments import Ints
from kernels.tuning import rank_caps

ROWS = (1, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
TOKENS = (
    *(64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048),
    *(3072, 4096, 6144, 8192, 12288, 16384),
)
"""Padding costs what tokens cost. Above 256 a pass is a half larger than the one before at most."""
MIXED_BLOCK_ROWS = 16
MIXED_BLOCKS = (16, 64, 160)
"""Blocks that a mixed shape has beside full ones. A launch with room for many more than there are
cuts each product into fewer parts and fills the chip worse: twice the time at 384 tokens."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Of some adapters together, or the most that a graph serves. lm_head counts in neither: its
    term has graphs of its own.

    rank        the largest of any module
    everywhere  False: nothing but the projections around attention has a term
    """

    rank: int = 0
    everywhere: bool = False

    def covers(self, other: Reach) -> bool:
        return self.rank >= other.rank and self.everywhere >= other.everywhere


@dataclass(frozen=True, slots=True)
class PassShape:
    """tokens    rows that enter the layers
    samples    rows that reach the head
    decode     every token is a sequence's last: token i is sampled row i
    block_rows, num_blocks   blocks of the tokens; 0 and 0 where no row has an adapter
    reach      of the blocks' adapters, at most
    """

    tokens: int
    samples: int
    decode: bool
    block_rows: int = 0
    num_blocks: int = 0
    reach: Reach = Reach()

    @property
    def has_adapters(self) -> bool:
        return self.block_rows > 0


@dataclass(frozen=True, slots=True)
class Buckets:
    """max_seqs rows at most; max_tokens tokens in a step at most; max_rank of any adapter."""

    max_seqs: int
    max_tokens: int
    max_rank: int

    @property
    def rows(self) -> tuple[int, ...]:
        return (*(n for n in ROWS if n < self.max_seqs), self.max_seqs)

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*(n for n in TOKENS if n < self.max_tokens), self.max_tokens)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """What is captured for, the cheapest first. Small ranks don't pay for large ones, nor
        adapters of attention, which are the most common, for launches on the MLP."""
        small, *large = rank_caps(self.max_rank)
        return (Reach(small), Reach(small, True), *(Reach(cap, True) for cap in large))

    def shapes(self) -> list[PassShape]:
        """All of them, those that need most workspace first."""
        found = [self._mixed(n) for n in self.tokens]
        found += [PassShape(n, n, True) for n in self.rows]
        for reach in self.reaches:
            found += [self._mixed(n, b, reach) for n in self.tokens for b in self._mixed_blocks(n)]
            found += [
                PassShape(n, n, True, *blocks, reach)
                for n in self.rows
                for blocks in decode_blocks(n)
            ]
        return sorted(found, key=lambda shape: (-shape.tokens, -shape.reach.rank))

    def choose(self, adapters: Ints, decode: bool, reach: Reach) -> PassShape:
        """The shape of a step whose tokens have these adapters, -1 where they have none, whose
        reach is at most `reach`.

        Raises ValueError where no shape holds so many tokens or such adapters.
        """
        num = _at_least(len(adapters), self.rows if decode else self.tokens)
        if not len(adapters) or adapters.max() < 0:
            return PassShape(num, num, True) if decode else self._mixed(num)
        _, sizes = np.unique(adapters, return_counts=True)
        served = self._served(reach)
        if decode:
            for block_rows, num_blocks in decode_blocks(num):
                if _blocks(sizes, block_rows) <= num_blocks:
                    return PassShape(num, num, True, block_rows, num_blocks, served)
        needed = _blocks(sizes, MIXED_BLOCK_ROWS)
        return self._mixed(num, _at_least(needed, self._mixed_blocks(num)), served)

    @property
    def max_blocks(self) -> int:
        return max(shape.num_blocks for shape in self.shapes())

    @property
    def max_block_words(self) -> int:
        """Of a shape's blocks: rows of all of them."""
        return max(shape.num_blocks * shape.block_rows for shape in self.shapes())

    def _mixed(self, tokens: int, num_blocks: int = 0, reach: Reach = Reach()) -> PassShape:
        block_rows = MIXED_BLOCK_ROWS if num_blocks else 0
        return PassShape(tokens, self.max_seqs, False, block_rows, num_blocks, reach)

    def _served(self, reach: Reach) -> Reach:
        for served in self.reaches:
            if served.covers(reach):
                return served
        raise ValueError(f"a rank of {reach.rank} is more than {self.max_rank}, the largest served")

    def _mixed_blocks(self, tokens: int) -> tuple[int, ...]:
        """From a few adapters to as many as there can be: one for each sequence."""
        full = tokens // MIXED_BLOCK_ROWS
        most = min(self.max_seqs, tokens) + 1
        return (*(full + n for n in MIXED_BLOCKS if n < most), full + most)


def decode_blocks(rows: int) -> tuple[tuple[int, int], ...]:
    """(rows of a block, blocks) that decode graphs are captured for, best first: large blocks read
    an adapter once for many rows, blocks of one row waste nothing where adapters are all different.
    """
    if rows < 32:
        return ((1, rows),)
    if rows == 32:
        return ((16, 4), (4, 10), (1, 32))
    quarter = rows // 4
    return (
        (16, rows // 16 + 2),
        (8, rows // 8 + 2),
        (4, quarter + 2),
        (4, 2 * quarter),
        (1, rows),
    )


def _blocks(sizes: Ints, block_rows: int) -> int:
    return int((-(-sizes // block_rows)).sum())


def _at_least(num: int, of: tuple[int, ...]) -> int:
    for size in of:
        if num <= size:
            return size
    raise ValueError(f"{num} is more than {of[-1]}, the most that graphs are captured for")
