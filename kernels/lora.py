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

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from kernels.lanes import Entries, Entry, Group, Lanes, Wide
from kernels.segments import Ints, Segments


class LoraCpu:
    """The term for one arena. `features` [M, 2]: in and out of each module."""

    def __init__(self, arena: torch.Tensor, features: Ints) -> None:
        self._arena = arena
        self._features = features

    def bind(self, segments: Segments, table: torch.Tensor) -> BoundLora:
        """The term for the rows of one batch; it holds as long as `table` does not change."""
        return BoundLora(self._arena, self._features, segments, table)


class BoundLora:
    """The adapter term of one batch. `modules` that share an input are added in one call."""

    def __init__(
        self, arena: torch.Tensor, features: Ints, segments: Segments, table: torch.Tensor
    ) -> None:
        self._arena = arena
        self._features = features
        self._entries = Entries(segments, table)
        self._lanes = Lanes(self._entries, features)
        self._groups: dict[int, Group | None] = {}

    def add(self, modules: Sequence[int], x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the term of `modules` to y [N, sum of out], whose columns are theirs in order.

        x [N, in] is the input that they share; modules have consecutive ids.
        """
        group = self._group(modules, lookup=False)
        if group is not None:
            rows = self._entries.narrow
            of_lane = group.row if rows is None else rows.index_select(0, group.row)
            a = _rows_at(self._arena, x.shape[1]).index_select(0, group.a)
            self._expand(group, a.mul_(x.index_select(0, of_lane)).sum(-1), y)
        for wide in self._entries.wide:
            self._add_wide(wide, modules, x, y)

    def add_embedding(self, module: int, tokens: torch.Tensor, y: torch.Tensor) -> None:
        """Add the term of a lookup to y [N, out]; tokens [N] int64."""
        group = self._group((module,), lookup=True)
        if group is not None:
            rows = self._entries.narrow
            of_lane = group.row if rows is None else rows.index_select(0, group.row)
            self._expand(group, self._arena[group.a + tokens[of_lane] * group.width], y)
        for wide in self._entries.wide:
            entry = self._entries.of(wide.adapter, module)
            if entry is not None:
                a = self._arena[entry.a : entry.a + self._features[module, 0] * entry.rank]
                h = F.embedding(tokens[wide.rows], a.view(-1, entry.rank)) * entry.scale
                self._add_wide_b(wide, entry, h, y)

    def _group(self, modules: Sequence[int], lookup: bool) -> Group | None:
        if modules[0] not in self._groups:
            self._groups[modules[0]] = self._lanes.group(modules, lookup)
        return self._groups[modules[0]]

    def _expand(self, group: Group, h: torch.Tensor, y: torch.Tensor) -> None:
        """y [N, columns] += the lanes' h [lanes] times their scale and row of B."""
        weights = (h * group.scale).to(y.dtype).index_select(0, group.lane)
        blocks = self._arena.view(-1, group.chunk)
        # Positional: scale_grad_by_freq, mode (0 is sum), sparse, weights.
        bags = torch.embedding_bag(blocks, group.index, group.bag, False, 0, False, weights)
        delta = bags[0].view(-1, y.shape[1])
        for bias in group.biases:
            columns = delta[:, bias.columns]
            values = _rows_at(self._arena, columns.shape[1]).index_select(0, bias.offsets)
            columns.index_add_(0, bias.rows, (values * bias.scale).to(y.dtype))
        if self._entries.narrow is None:
            y.add_(delta)
        else:
            y.index_add_(0, self._entries.narrow, delta)

    def _add_wide(
        self, wide: Wide, modules: Sequence[int], x: torch.Tensor, y: torch.Tensor
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

    def _add_wide_b(self, wide: Wide, entry: Entry, h: torch.Tensor, y: torch.Tensor) -> None:
        """y [N, out] += h [rows, rank] @ B, and the bias."""
        b = self._arena[entry.b : entry.b + entry.rank * y.shape[1]].view(entry.rank, -1)
        if isinstance(wide.rows, slice):
            y[wide.rows].addmm_(h, b)
        else:
            y.index_add_(0, wide.rows, h @ b)
        if entry.bias:
            y[wide.rows] += self._arena[entry.bias : entry.bias + y.shape[1]] * entry.scale


def _rows_at(arena: torch.Tensor, width: int) -> torch.Tensor:
    """The arena as overlapping rows: row i is elements i .. i + width - 1."""
    return arena.as_strided((arena.numel() - width + 1, width), (1, 1))
