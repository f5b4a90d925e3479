"""Lanes: the rows of small segments spread over the ranks of their adapters, on the CPU.

A lane is one (row, rank): the address of a row of A and of a row of B. Ranks are ragged and nothing
is padded. `kernels.lora` multiplies; here is index arithmetic alone, done once for a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels import table as T
from kernels.segments import Ints, Segments

WIDE = 16
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Bias:
    """One module's biases: y's columns, narrow rows [n], offsets [n] and scales [n, 1]."""

    columns: slice
    rows: torch.Tensor
    offsets: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """The lanes of modules that share an input, and how they become columns of y.

    a       [lanes] offsets of A's rows
    row     [lanes] narrow row of x
    width   [lanes] elements from one token's A to the next, of a lookup
    scale   [lanes] float32
    chunk   columns of y at a time: a divisor of every module's out, and of every offset
    bag     [narrow rows x chunks of y] where each begins in the two below; one may be empty
    index   chunk numbers of B in the arena
    lane    whose weight each of them takes
    """

    a: torch.Tensor
    row: torch.Tensor
    width: torch.Tensor
    scale: torch.Tensor
    chunk: int
    bag: torch.Tensor
    index: torch.Tensor
    lane: torch.Tensor
    biases: tuple[Bias, ...]


@dataclass(frozen=True, slots=True)
class Wide:
    """A segment of many rows. rows: a slice where they are consecutive, else their numbers."""

    adapter: int
    rows: slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class Entry:
    a: int
    b: int
    rank: int
    scale: float
    bias: int


class Entries:
    """The table's entries for the rows of one batch, and its rows parted into narrow and wide.

    narrow  [n] row numbers, ascending; None: all rows of the batch, base rows with rank 0 included
    table   [n, M, 6] entries of the narrow rows; rank [n, M]; scale [n, M]
    """

    def __init__(self, segments: Segments, table: torch.Tensor) -> None:
        starts, rows = segments.starts.numpy(), segments.rows.numpy()
        adapters = segments.adapters.numpy()
        sizes = np.diff(starts)
        self._table, self._scales = table.numpy(), T.scales(table).numpy()
        is_wide = sizes > WIDE
        self.wide = tuple(
            Wide(int(adapters[s]), _span(rows[starts[s] : starts[s + 1]]))
            for s in np.flatnonzero(is_wide)
        )
        in_wide = np.repeat(is_wide, sizes)
        narrow, of_row = rows[~in_wide], np.repeat(adapters, sizes)[~in_wide]
        if not self.wide and len(narrow):
            every = np.full(segments.num_rows, -1)
            every[narrow] = of_row
            self.narrow, of_row = None, every
        else:
            order = np.argsort(narrow)
            self.narrow, of_row = torch.from_numpy(narrow[order]), of_row[order]
        self.table = self._table[of_row]
        self.scale = self._scales[of_row]
        self.rank = np.where(of_row[:, None] < 0, 0, self.table[..., T.RANK])

    def of(self, adapter: int, module: int) -> Entry | None:
        """One adapter's entry for one module; None where it is absent."""
        entry = self._table[adapter, module]
        if entry[T.RANK] == 0:
            return None
        a, b, rank, _, bias, _ = entry.tolist()
        return Entry(a, b, rank, float(self._scales[adapter, module]), bias)


class Lanes:
    """All modules' lanes of the narrow rows, module-major, then by row, then by rank."""

    def __init__(self, entries: Entries, features: Ints) -> None:
        self._entries = entries
        self._features = features
        counts = entries.rank.T.ravel()
        ends = np.cumsum(counts)
        self._starts = (ends - counts).reshape(entries.rank.T.shape)
        item = np.repeat(np.arange(len(counts)), counts)
        self._k = np.arange(len(item)) - np.repeat(ends - counts, counts)
        module, self._row = np.divmod(item, max(1, len(entries.rank)))
        self._a = entries.table[..., T.A].T.ravel()[item]
        self._b = entries.table[..., T.B].T.ravel()[item] + self._k * features[module, 1]
        self._rank = counts[item]
        self._scale = entries.scale.T.ravel()[item]
        self._patterns: dict[tuple[bytes, bytes], tuple[Ints, Ints, Ints]] = {}

    def group(self, modules: Sequence[int], lookup: bool) -> Group | None:
        """The lanes of `modules`; None where no narrow row has any of them."""
        ranks = self._entries.rank[:, modules[0] : modules[-1] + 1]
        if not ranks.any():
            return None
        first = int(self._starts[modules[0], 0])
        lanes = slice(first, first + int(ranks.sum()))
        step = 1 if lookup else self._features[modules[0], 0]
        outs = self._features[modules[0] : modules[-1] + 1, 1]
        chunk = math.gcd(_ALIGN, *outs.tolist())
        lane, part, bag = self._pattern(ranks, outs // chunk)
        return Group(
            a=torch.from_numpy(self._a[lanes] + self._k[lanes] * step),
            row=torch.from_numpy(self._row[lanes]),
            width=torch.from_numpy(self._rank[lanes]),
            scale=torch.from_numpy(self._scale[lanes]),
            chunk=chunk,
            bag=torch.from_numpy(bag),
            index=torch.from_numpy((self._b[lanes] // chunk)[lane] + part),
            lane=torch.from_numpy(lane),
            biases=tuple(self._biases(modules, outs)),
        )

    def _pattern(self, ranks: Ints, chunks: Ints) -> tuple[Ints, Ints, Ints]:
        """(lane, chunk of its row of B, bag starts) of bags that go by row, module and chunk.

        ranks [n, modules]; chunks [modules] of each row of B. Layers alike share a pattern.
        """
        key = (ranks.tobytes(), chunks.tobytes())
        if key not in self._patterns:
            by_module = ranks.T.ravel()
            starts = (np.cumsum(by_module) - by_module).reshape(ranks.T.shape).T
            sizes = np.repeat(ranks, chunks, axis=1).ravel()
            first_lane = np.repeat(starts, chunks, axis=1).ravel()
            part = np.tile(np.concatenate([np.arange(c) for c in chunks]), len(ranks))
            ends = np.cumsum(sizes)
            bag = np.repeat(np.arange(len(sizes)), sizes)
            k = np.arange(len(bag)) - np.repeat(ends - sizes, sizes)
            self._patterns[key] = (first_lane[bag] + k, part[bag], ends - sizes)
        return self._patterns[key]

    def _biases(self, modules: Sequence[int], outs: Ints) -> Iterator[Bias]:
        ends = np.cumsum(outs)
        for module, end, out in zip(modules, ends.tolist(), outs.tolist(), strict=True):
            offsets = self._entries.table[:, module, T.BIAS]
            rows = np.flatnonzero((offsets > 0) & (self._entries.rank[:, module] > 0))
            if len(rows):
                yield Bias(
                    slice(end - out, end),
                    torch.from_numpy(rows),
                    torch.from_numpy(offsets[rows]),
                    torch.from_numpy(self._entries.scale[rows, module][:, None]),
                )


def _span(rows: Ints) -> slice | torch.Tensor:
    first = int(rows[0])
    if int(rows[-1]) - first == len(rows) - 1:
        return slice(first, first + len(rows))
    return torch.from_numpy(rows.copy())
