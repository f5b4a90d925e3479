"""The grouped adapter term on the CPU, vectorised over rows, adapters, ranks and modules.

Semantics (`kernels.table`), for every row n with adapter g, in place::

    y[n, o] += scale * (sum over r of (sum over i of x[n, i] A[r, i]) B[r, o] + bias[o])

Rows of small segments are spread into *lanes*, one for each (row, rank): a lane is the address of
a row of A and of a row of B, so ranks are ragged and nothing is padded. Shrinking is one gather of
all lanes' A rows with a product and a sum; expanding is one weighted gather-sum of B rows by row of
y. The lanes of all modules are made once a batch. Segments of more than `WIDE` rows are matrix
products of their own; a batch of T tokens has at most T / WIDE of them.

A row's result depends on its own adapter alone, to the bit, and never on what lies elsewhere: no
term of one row's lanes is multiplied into another row, not even by zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from kernels import table as T
from kernels.segments import Ints, Segments

WIDE = 16
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class _Shrink:
    """The lanes of modules that share an input. a [lanes]: offsets of A's rows. row [lanes]: which
    narrow row. scale [lanes]."""

    a: torch.Tensor
    row: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Expand:
    """One module's lanes, in chunks of `chunk` output columns (a divisor of out and of every
    offset). index: chunk numbers of B in the arena; lane: whose weight each takes; bag: where each
    (row, chunk of y) begins in them. bias rows: narrow rows and offsets with their scales."""

    first: int
    last: int
    chunk: int
    index: torch.Tensor
    lane: torch.Tensor
    bag: torch.Tensor
    bias_row: torch.Tensor
    bias: torch.Tensor
    bias_scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Wide:
    """A segment of many rows. rows: a slice where they are consecutive, else their numbers."""

    adapter: int
    rows: slice | torch.Tensor


class LoraCpu:
    """The term for one arena and one table. `features` [M, 2]: in and out of each module."""

    def __init__(self, arena: torch.Tensor, features: Ints) -> None:
        self._arena = arena
        self._features = features

    def bind(self, segments: Segments, table: torch.Tensor) -> BoundLora:
        """The term for the rows of one batch. `table` is read now and not kept."""
        return BoundLora(self._arena, self._features, segments, table)


class BoundLora:
    """The adapter term of one batch. `modules` that share an input are added in one call."""

    def __init__(
        self, arena: torch.Tensor, features: Ints, segments: Segments, table: torch.Tensor
    ) -> None:
        self._arena = arena
        self._features = features
        self._entries = _Entries(segments, table)
        self._wide = self._entries.wide
        self._lanes = _Lanes(self._entries, features)
        self._groups: dict[int, tuple[_Shrink, tuple[_Expand | None, ...]] | None] = {}

    def add(self, modules: Sequence[int], x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the term of `modules` to y [N, sum of out], whose columns are theirs in order.

        x [N, in] is the input that they share; modules have consecutive ids.
        """
        group = self._group(modules)
        if group is not None:
            shrink, expands = group
            rows = self._entries.narrow
            narrow = x if rows is None else x.index_select(0, rows)
            a = _rows_at(self._arena, x.shape[1]).index_select(0, shrink.a)
            h = a.mul(narrow.float().index_select(0, shrink.row)).sum(-1) * shrink.scale
            self._expand(modules, expands, h.to(y.dtype), y)
        for wide in self._wide:
            self._add_wide(wide, modules, x, y)

    def add_embedding(self, module: int, tokens: torch.Tensor, y: torch.Tensor) -> None:
        """Add the term of a lookup to y [N, out]; tokens [N] int64."""
        group = self._group((module,), lookup=True)
        if group is not None:
            shrink, expands = group
            rows = self._entries.narrow
            narrow = tokens if rows is None else tokens.index_select(0, rows)
            ranks = self._entries.rank[:, module]
            width = torch.from_numpy(np.repeat(ranks, ranks))
            h = self._arena[shrink.a + narrow[shrink.row] * width].float() * shrink.scale
            self._expand((module,), expands, h.to(y.dtype), y)
        for wide in self._wide:
            entry = self._entries.of(wide.adapter, module)
            if entry is not None:
                a = self._arena[entry.a : entry.a + self._features[module, 0] * entry.rank]
                h = F.embedding(tokens[wide.rows], a.view(-1, entry.rank)) * entry.scale
                self._add_wide_b(wide, entry, h, y)

    def _group(
        self, modules: Sequence[int], lookup: bool = False
    ) -> tuple[_Shrink, tuple[_Expand | None, ...]] | None:
        if modules[0] not in self._groups:
            self._groups[modules[0]] = self._lanes.group(modules, lookup)
        return self._groups[modules[0]]

    def _expand(
        self,
        modules: Sequence[int],
        expands: tuple[_Expand | None, ...],
        h: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        column = 0
        for module, part in zip(modules, expands, strict=True):
            out = int(self._features[module, 1])
            if part is not None:
                delta = F.embedding_bag(
                    part.index,
                    self._arena.view(-1, part.chunk),
                    part.bag,
                    mode="sum",
                    per_sample_weights=h[part.first : part.last].index_select(0, part.lane),
                ).view(-1, out)
                if len(part.bias):
                    bias = _rows_at(self._arena, out).index_select(0, part.bias)
                    delta.index_add_(0, part.bias_row, (bias * part.bias_scale).to(y.dtype))
                columns = y[:, column : column + out]
                if self._entries.narrow is None:
                    columns.add_(delta)
                else:
                    columns.index_add_(0, self._entries.narrow, delta)
            column += out

    def _add_wide(
        self, wide: _Wide, modules: Sequence[int], x: torch.Tensor, y: torch.Tensor
    ) -> None:
        column = 0
        rows: torch.Tensor | None = None
        for module in modules:
            out = int(self._features[module, 1])
            entry = self._entries.of(wide.adapter, module)
            if entry is not None:
                rows = x[wide.rows] if rows is None else rows
                a = self._arena[entry.a : entry.a + entry.rank * x.shape[1]]
                h = (rows @ a.view(entry.rank, -1).t()) * entry.scale
                self._add_wide_b(wide, entry, h, y[:, column : column + out])
            column += out

    def _add_wide_b(self, wide: _Wide, entry: _Entry, h: torch.Tensor, y: torch.Tensor) -> None:
        """y [N, out] += h [rows, rank] @ B, and the bias."""
        b = self._arena[entry.b : entry.b + entry.rank * y.shape[1]].view(entry.rank, -1)
        if isinstance(wide.rows, slice):
            y[wide.rows].addmm_(h, b)
        else:
            y.index_add_(0, wide.rows, h @ b)
        if entry.bias:
            y[wide.rows] += self._arena[entry.bias : entry.bias + y.shape[1]] * entry.scale


@dataclass(frozen=True, slots=True)
class _Entry:
    a: int
    b: int
    rank: int
    scale: float
    bias: int


class _Entries:
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
            _Wide(int(adapters[s]), _span(rows[starts[s] : starts[s + 1]]))
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

    def of(self, adapter: int, module: int) -> _Entry | None:
        """One adapter's entry for one module; None where it is absent."""
        entry = self._table[adapter, module]
        if entry[T.RANK] == 0:
            return None
        a, b, rank, _, bias, _ = entry.tolist()
        return _Entry(a, b, rank, float(self._scales[adapter, module]), bias)


class _Lanes:
    """All modules' lanes of the narrow rows, module-major, then by row, then by rank."""

    def __init__(self, entries: _Entries, features: Ints) -> None:
        self._entries = entries
        self._features = features
        counts = entries.rank.T.ravel()
        ends = np.cumsum(counts)
        self._bounds = np.concatenate([[0], ends])[:: max(1, len(entries.rank))]
        item = np.repeat(np.arange(len(counts)), counts)
        self._k = np.arange(len(item)) - np.repeat(ends - counts, counts)
        module, self._row = np.divmod(item, max(1, len(entries.rank)))
        self._a_offset = entries.table[..., T.A].T.ravel()[item]
        self._scale = entries.scale.T.ravel()[item]
        self._b = entries.table[..., T.B].T.ravel()[item] + self._k * features[module, 1]
        self._patterns: dict[tuple[bytes, int], tuple[Ints, Ints, Ints]] = {}

    def group(
        self, modules: Sequence[int], lookup: bool
    ) -> tuple[_Shrink, tuple[_Expand | None, ...]] | None:
        """The lanes of `modules`; None where no narrow row has any of them."""
        if len(self._entries.rank) == 0:
            return None
        first, last = self._bounds[modules[0]], self._bounds[modules[-1] + 1]
        if first == last:
            return None
        step = 1 if lookup else self._features[modules[0], 0]
        shrink = _Shrink(
            torch.from_numpy(self._a_offset[first:last] + self._k[first:last] * step),
            torch.from_numpy(self._row[first:last]),
            torch.from_numpy(self._scale[first:last]),
        )
        return shrink, tuple(self._module(m, int(first)) for m in modules)

    def _module(self, module: int, base: int) -> _Expand | None:
        first, last = int(self._bounds[module]), int(self._bounds[module + 1])
        if first == last:
            return None
        out = int(self._features[module, 1])
        chunk = math.gcd(out, _ALIGN)
        lane, part, bag = self._pattern(self._entries.rank[:, module], out // chunk)
        bias = self._entries.table[:, module, T.BIAS] * (self._entries.rank[:, module] > 0)
        rows = np.flatnonzero(bias)
        return _Expand(
            first - base,
            last - base,
            chunk,
            torch.from_numpy((self._b[first:last] // chunk)[lane] + part),
            torch.from_numpy(lane),
            torch.from_numpy(bag),
            torch.from_numpy(rows),
            torch.from_numpy(bias[rows]),
            torch.from_numpy(self._entries.scale[rows, module][:, None]),
        )

    def _pattern(self, ranks: Ints, chunks: int) -> tuple[Ints, Ints, Ints]:
        """(lane, chunk, bag starts) of a module's bags, which go by row, then by chunk."""
        key = (ranks.tobytes(), chunks)
        if key not in self._patterns:
            sizes = np.repeat(ranks, chunks)
            ends = np.cumsum(sizes)
            bags = np.arange(len(sizes))
            bag = np.repeat(bags, sizes)
            k = np.arange(len(bag)) - np.repeat(ends - sizes, sizes)
            row_start = np.cumsum(ranks) - ranks
            self._patterns[key] = (row_start[bag // chunks] + k, bag % chunks, ends - sizes)
        return self._patterns[key]


def _rows_at(arena: torch.Tensor, width: int) -> torch.Tensor:
    """The arena as overlapping rows: row i is elements i .. i + width - 1."""
    return arena.as_strided((arena.numel() - width + 1, width), (1, 1))


def _span(rows: Ints) -> slice | torch.Tensor:
    first = int(rows[0])
    if int(rows[-1]) - first == len(rows) - 1:
        return slice(first, first + len(rows))
    return torch.from_numpy(rows.copy())
