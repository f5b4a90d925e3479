"""The rows of a batch in blocks of one adapter each, in fixed device buffers.

The form in which GPU kernels read `kernels.segments`: every row is in exactly one block, rows
without an adapter too, so that a kernel that does more than the adapter term (an activation, a
norm) covers the batch in the same launch. Shapes depend on the bucket alone; a graph captured for
it serves every set of adapters. A running example, six rows, two rows a block, six blocks::

    row       0   1   2   3   4   5
    adapter  -1   7   2   7   7  -1

    rows     [[0, 5], [2, -1], [1, 3], [4, -1], [-1, -1], [-1, -1]]    -1: no row
    adapters [-1, 2, 7, 7, -1, -1]                                     -1: no adapter

Unused blocks come last. A kernel's program for one ends after its first load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.segments import Ints

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """S blocks of at most M of num_rows rows. rows [S, M] int32, adapters [S] int32."""

    num_rows: int
    rows: torch.Tensor
    adapters: torch.Tensor

    @property
    def num_blocks(self) -> int:
        return self.rows.shape[0]

    @property
    def block_rows(self) -> int:
        return self.rows.shape[1]

    @classmethod
    def of(
        cls, adapters: Ints, block_rows: int, num_blocks: int, device: torch.device | str = "cpu"
    ) -> RowBlocks:
        """Blocks of the rows whose adapters are given. ValueError: they need more blocks."""
        rows, owners = group_blocks(adapters, block_rows, num_blocks)
        return cls(
            len(adapters), torch.from_numpy(rows).to(device), torch.from_numpy(owners).to(device)
        )

    def copy_(self, other: RowBlocks) -> None:
        """Take over another batch's blocks, at the addresses that these have."""
        self.rows.copy_(other.rows, non_blocking=True)
        self.adapters.copy_(other.adapters, non_blocking=True)

    def check(self) -> None:
        """Raise AssertionError unless the fields are as described."""
        rows = self.rows[self.rows >= 0].tolist()
        assert sorted(rows) == list(range(self.num_rows))
        assert self.adapters.shape == (self.num_blocks,)
        used = (self.rows >= 0).sum(1)
        assert bool(((self.rows >= 0) == (torch.arange(self.block_rows) < used[:, None])).all())
        assert bool((used[1:].sign() <= used[:-1].sign()).all())
        assert bool((self.adapters[used == 0] == -1).all())


def group_blocks(adapters: Ints, block_rows: int, num_blocks: int) -> tuple[Words, Words]:
    """(rows [num_blocks, block_rows], adapters [num_blocks]) as in the module's example."""
    order = np.argsort(adapters, kind="stable")
    of_row = adapters[order]
    index = np.arange(len(order))
    first = np.ones(len(order), bool)
    first[1:] = of_row[1:] != of_row[:-1]
    since = index - np.maximum.accumulate(np.where(first, index, 0))
    block = np.cumsum(since % block_rows == 0) - 1
    used = int(block[-1]) + 1 if len(block) else 0
    if used > num_blocks:
        raise ValueError(f"{used} blocks of {block_rows} rows are needed, there are {num_blocks}")
    rows = np.full((num_blocks, block_rows), -1, np.int32)
    rows[block, since % block_rows] = order
    owners = np.full(num_blocks, -1, np.int32)
    owners[block] = of_row
    return rows, owners
