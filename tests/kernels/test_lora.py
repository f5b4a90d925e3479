"""The vectorised adapter term against plain loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels import reference
from kernels import table as T
from kernels.lanes import WIDE
from kernels.lora import LoraCpu
from kernels.segments import Segments

POPULARITY = {
    "distinct": lambda n, rng: np.arange(n),
    "uniform": lambda n, rng: rng.integers(0, 5, n),
    "skewed": lambda n, rng: np.minimum(rng.zipf(1.5, n) - 1, 6),
    "identical": lambda n, rng: np.zeros(n, np.int64),
    "half base": lambda n, rng: np.where(rng.random(n) < 0.5, -1, rng.integers(0, 3, n)),
    "none": lambda n, rng: np.full(n, -1),
}
# In dtype's own rounding: B is read once, A once, the sum is rounded once or twice.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


class Case:
    """Random adapters in an arena that is NaN wherever nothing was written."""

    def __init__(self, adapters, ranks, features, *, lookup=0, dtype=torch.float32, bias=True):
        self.rng = np.random.default_rng(0)
        self.adapters = [int(a) for a in adapters]
        self.features = np.array(features, np.int64)
        self.dtype = dtype
        self.parts: list[torch.Tensor] = []
        self.end = 64
        num_adapters = max([*self.adapters, 0]) + 1
        self.table = T.empty_table(num_adapters, len(features))
        for adapter in range(num_adapters):
            for module, (size_in, size_out) in enumerate(features):
                rank = ranks[(adapter * 3 + module) % len(ranks)]
                if rank == 0:
                    continue
                self.table[adapter, module] = torch.tensor(
                    [
                        self.put(rank * (lookup or size_in)),
                        self.put(rank * size_out),
                        rank,
                        T.scale_bits(0.25 * (adapter + 1) - 1),
                        self.put(size_out) if bias and adapter % 2 else 0,
                        0,
                    ]
                )
        self.arena = torch.full((-(-self.end // 64) * 64 + 128,), torch.nan, dtype=dtype)
        at = 64
        for part in self.parts:
            self.arena[at : at + len(part)] = part
            at += -(-len(part) // 64) * 64
        self.x = self.random(len(self.adapters), features[0][0])
        self.y = self.random(len(self.adapters), int(self.features[:, 1].sum()))

    def random(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape)).to(self.dtype)

    def put(self, num_elements):
        """Offset of a new block of random numbers."""
        at = self.end
        self.parts.append(self.random(num_elements))
        self.end += -(-num_elements // 64) * 64
        return at

    def bind(self):
        segments = Segments.of(np.array(self.adapters, np.int64), max_rows=1 << 30)
        segments.check()
        return LoraCpu(self.arena, self.features).bind(segments, self.table)

    def added(self):
        y = self.y.clone()
        self.bind().add(range(len(self.features)), self.x, y)
        return y

    def wanted(self):
        column, columns = 0, []
        for module, (_, size_out) in enumerate(self.features.tolist()):
            y = self.y[:, column : column + size_out]
            columns.append(
                reference.linear(self.x, y, self.arena, self.table, self.adapters, module)
            )
            column += size_out
        return torch.cat(columns, 1)

    def assert_close(self, y, wanted):
        assert y.isfinite().all()
        scale = wanted.abs().amax(1, keepdim=True).clamp(min=1)
        error = ((y.double() - wanted).abs() / scale).max() if y.numel() else 0
        assert error <= TOLERANCE[self.dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("rows", [1, 7, 16, 61])
@pytest.mark.parametrize("popularity", POPULARITY)
def test_all_popularities_with_ragged_ranks(popularity, rows, dtype):
    adapters = POPULARITY[popularity](rows, np.random.default_rng(rows))
    case = Case(adapters, (1, 0, 8, 3, 64), [(33, 17), (33, 64), (33, 1)], dtype=dtype)
    case.assert_close(case.added(), case.wanted())


@pytest.mark.parametrize("rank", [1, 2, 5, 8, 16, 31, 64])
@pytest.mark.parametrize("size_in,size_out", [(1, 1), (63, 65), (128, 192), (7, 96)])
def test_odd_sizes_and_ranks(rank, size_in, size_out):
    case = Case([0, -1, 2, 1, 0], (rank,), [(size_in, size_out)])
    case.assert_close(case.added(), case.wanted())


def test_long_segments_beside_short_ones_in_any_order():
    """A mixed pass: two prompts, one in pieces, among decoding rows and base rows."""
    adapters = [1, -1, 0] + [2] * (WIDE + 1) + [-1, 0] + [3] * 40 + [2, 1]
    case = Case(adapters, (8, 4, 0), [(48, 64), (48, 32)])
    case.assert_close(case.added(), case.wanted())


@pytest.mark.parametrize("rows", [5, 50])
def test_a_lookup_reads_rows_of_its_own(rows):
    adapters = np.random.default_rng(1).integers(-1, 2, rows)
    vocab = 29
    case = Case(adapters, (4, 3), [(vocab, 24)], bias=False)
    tokens = torch.from_numpy(case.rng.integers(0, vocab, rows))
    y = case.y.clone()
    case.bind().add_embedding(0, tokens, y)
    wanted = reference.embedding(tokens.tolist(), case.y, case.arena, case.table, case.adapters, 0)
    case.assert_close(y, wanted)


@pytest.mark.parametrize("rows", [6, 40], ids=["narrow", "wide"])
def test_what_is_not_a_number_stays_in_its_row(rows):
    """A-NONFINITE: 0 x NaN is NaN, so nothing of one row may be multiplied into another."""
    case = Case([0] * rows + [1] * rows + [-1], (8,), [(32, 64)])
    wanted = case.wanted()
    case.x[0] = torch.nan
    case.x[rows] = torch.inf
    y = case.added()
    others = [i for i in range(len(y)) if i not in (0, rows)]
    assert not y[[0, rows]].isfinite().any()
    assert torch.allclose(y[others].double(), wanted[others], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("rows", [1, 3, WIDE + 1])
def test_a_row_has_the_same_bits_whoever_is_beside_it(rows, dtype):
    """Another adapter comes, of any rank, or goes, or has B = 0: this row's bits don't change."""
    features = [(64, 96), (64, 32)]
    both = Case([0] * 2 + [1] * rows + [2] * 2, (8, 64, 3), features, dtype=dtype)
    whole = both.added()
    without = Case([0] * 2 + [1] * rows + [2] * 2, (8, 64, 3), features, dtype=dtype)
    without.adapters[2 : 2 + rows] = [-1] * rows
    part = without.added()
    others = [0, 1, -2, -1]
    assert torch.equal(whole[others].view(torch.uint8), part[others].view(torch.uint8))
    for module in range(2):
        _, b, rank, *_ = both.table[1, module].tolist()
        both.arena[b : b + rank * features[module][1]] = 0
    both.table[1, :, T.BIAS] = 0
    assert torch.equal(both.added().view(torch.uint8), part.view(torch.uint8))


def test_a_table_that_was_changed_is_read_anew():
    case = Case([0, 1], (8, 4), [(32, 64)])
    case.table[0] = 0
    case.assert_close(case.added(), case.wanted())
