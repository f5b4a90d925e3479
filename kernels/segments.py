"""The rows of a batch grouped by adapter: all that a kernel knows of LoRA.

Adapters are indices into a table (`kernels.table`); -1 is none. A running example, six rows and at
most two rows a segment::

    row       0   1   2   3   4   5
    adapter  -1   7   2   7   7  -1

    rows     [2, 1, 3, 4]   rows that have an adapter, sorted by adapter, in order within one
    starts   [0, 1, 3, 4]   segment s holds rows[starts[s]] .. rows[starts[s + 1] - 1]
    adapters [2, 7, 7]      the adapter of each segment; 7 has three rows, so two segments

The rows that enter a layer are not always the batch's tokens: only sampled rows reach the head, so
the head has segments of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segments:
    """n of num_rows rows have an adapter; they form S segments.

    num_rows  rows of the batch that enter the layer
    rows      [n] int64
    starts    [S + 1] int64, starts[0] = 0, starts[S] = n
    adapters  [S] int64, ascending
    """

    num_rows: int
    rows: torch.Tensor
    starts: torch.Tensor
    adapters: torch.Tensor

    @classmethod
    def of(cls, adapters: Ints, max_rows: int) -> Segments:
        """Segments of the rows whose adapters are given, on the CPU."""
        parts = (torch.from_numpy(part) for part in group_rows(adapters, max_rows))
        return cls(len(adapters), *parts)

    def check(self) -> None:
        """Raise AssertionError unless the fields are as described."""
        starts, rows = self.starts.tolist(), self.rows.tolist()
        assert starts[0] == 0 and starts[-1] == len(rows)
        assert all(a < b for a, b in zip(starts, starts[1:], strict=False))
        assert len(starts) == len(self.adapters) + 1
        assert len(set(rows)) == len(rows) and all(0 <= r < self.num_rows for r in rows)
        adapters = self.adapters.tolist()
        assert adapters == sorted(adapters) and all(a >= 0 for a in adapters)


def group_rows(adapters: Ints, max_rows: int) -> tuple[Ints, Ints, Ints]:
    """(rows, starts, adapters) of segments of at most `max_rows` rows. `adapters` is [num_rows]."""
    order = np.argsort(adapters, kind="stable")
    rows = order[np.searchsorted(adapters[order], 0) :]
    of_row = adapters[rows]
    index = np.arange(len(rows))
    first = np.ones(len(rows), bool)
    first[1:] = of_row[1:] != of_row[:-1]
    since = index - np.maximum.accumulate(np.where(first, index, 0))
    starts = np.flatnonzero(since % max_rows == 0)
    return rows, np.append(starts, len(rows)), of_row[starts]
