"""The fused kernels and attention on a GPU at the shapes of real models, in float32 and bf16.

Per row, the norm of the difference from float64 over the norm: all popularities, odd numbers of
rows, ranks 1 to 256, absent modules, three and four queries a KV head, heads of 64 and of 128,
outputs that are NaN beforehand.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.device_batch import attention_tiles
from kernels import reference_layer
from kernels.blocks import RowBlocks
from kernels.gate import silu_gate
from kernels.lora_gpu import BoundLoraGpu, LoraGpu
from kernels.norm import Squares
from kernels.paged_attention import PagedAttention, Tiles
from kernels.residual import add_residual, squares_of
from kernels.rotary import Heads, rotate_and_store
from kernels.tuning import block_rows_for
from tests.support.adapters_on_device import RandomAdapters
from tests.support.row_blocks import most_blocks

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
EPS = 1e-5
RANKS = (1, 8, 16, 17, 64, 128, 256)
POPULARITY = {
    "distinct": lambda n, rng: np.arange(n) % 21,
    "uniform": lambda n, rng: rng.integers(-1, 21, n),
    "skewed": lambda n, rng: np.minimum(rng.zipf(1.5, n) - 2, 20),
    "identical": lambda n, rng: np.full(n, 6),
    "none": lambda n, rng: np.full(n, -1),
}
# hidden, inner, query heads, KV heads, head_dim
SHAPES = {"576": (576, 1536, 9, 3, 64), "2048": (2048, 3000, 16, 4, 128)}
everywhere = [
    pytest.mark.parametrize("dtype", TOLERANCE, ids=str),
    pytest.mark.parametrize("shape", SHAPES),
    pytest.mark.parametrize("popularity", POPULARITY),
]


def sweep(test):
    for mark in everywhere:
        test = mark(test)
    return test


class Case:
    """owners of rows over 21 adapters: each rank on all modules, on the first, on the last."""

    def __init__(self, features, popularity, dtype, num=77):
        modules = range(len(features))
        ranks = [dict.fromkeys(modules, r) for r in RANKS]
        ranks += [{0: r} for r in RANKS] + [{len(features) - 1: r} for r in RANKS]
        self.adapters = RandomAdapters(features, ranks, dtype=dtype, biased=(0,), device="cuda")
        self.owners = POPULARITY[popularity](num, np.random.default_rng(3)).tolist()
        self.dtype, self.num = dtype, num

    def random(self, *shape):
        return torch.randn(*shape, device="cuda").to(self.dtype)

    def bind(self) -> BoundLoraGpu:
        num_adapters = max(1, len(set(self.owners) - {-1}))
        block_rows = block_rows_for(self.num, num_adapters)
        num_blocks = most_blocks(self.num, block_rows, num_adapters)
        of = self.adapters
        lora = LoraGpu(
            of.on_device,
            of.table_on_device,
            of.features,
            max_rows=self.num,
            max_blocks=num_blocks,
            max_rank=256,
        )
        lora.parts.fill_(torch.nan)
        bound = lora.bind(RowBlocks.of(np.array(self.owners), block_rows, num_blocks, "cuda"))
        bound.begin()
        return bound

    def near(self, got, want):
        error = (got.double() - want).flatten(1).norm(dim=-1) / want.flatten(1).norm(dim=-1)
        assert float(error.nan_to_num(nan=torch.inf).max()) <= TOLERANCE[self.dtype]


def given_squares(r):
    parts = torch.stack([(part.double() ** 2).sum(1) for part in r.chunk(3, 1)], 1)
    return Squares(parts.float(), r.shape[1], EPS)


@sweep
def test_gate(popularity, shape, dtype, cuda):
    hidden, inner, *_ = SHAPES[shape]
    case = Case([(hidden, inner), (hidden, inner)], popularity, dtype)
    x, y, r = case.random(case.num, hidden), case.random(case.num, 2 * inner), torch.randn(77, 64)
    r = r.to(cuda)
    factor = reference_layer.factor(r, EPS)
    of_x = case.adapters.terms(case.owners, (0, 1), x, factor)
    want = reference_layer.silu_gate(y.double() * factor + of_x)
    bound = case.bind()
    out = torch.full((case.num, inner), torch.nan, device=cuda, dtype=dtype)
    silu_gate(y, out, bound.tuning.gate, given_squares(r), term=bound.shrink((0, 1), x))
    case.near(out, want)


@sweep
def test_residual(popularity, shape, dtype, cuda):
    hidden, inner, *_ = SHAPES[shape]
    case = Case([(inner, hidden)], popularity, dtype)
    x_in, y, r = (case.random(case.num, n) for n in (inner, hidden, hidden))
    weight = case.random(hidden)
    want = r.double() + y.double() + case.adapters.terms(case.owners, (0,), x_in)
    bound = case.bind()
    tile = bound.tuning.residual
    squares = squares_of(r, EPS, tile)
    squares.parts.fill_(torch.nan)
    x = torch.full_like(r, torch.nan)
    add_residual(y, r, weight, x, squares, tile, bound.shrink((0,), x_in))
    case.near(r, want)
    case.near(x, want * weight.double())
    case.near(squares.parts.sum(1, keepdim=True), (want**2).sum(1, keepdim=True))


@sweep
def test_rotary(popularity, shape, dtype, cuda):
    hidden, _, num_heads, num_kv_heads, dim = SHAPES[shape]
    heads = Heads(num_heads, num_kv_heads, dim, 16, 2 * 2 * num_kv_heads * 16 * dim)
    widths = [n * dim for n in (num_heads, num_kv_heads, num_kv_heads)]
    case = Case([(hidden, width) for width in widths], popularity, dtype)
    x, qkv = case.random(case.num, hidden), case.random(case.num, sum(widths))
    r = torch.randn(77, 64, device=cuda)
    factor = reference_layer.factor(r, EPS)
    want = qkv.double() * factor + case.adapters.terms(case.owners, (0, 1, 2), x, factor)
    want = want.view(case.num, -1, dim)
    positions = torch.arange(case.num) * 5 % 200
    slots = torch.randperm(6 * 16)[: case.num]
    turns = torch.randn(200, dim // 2) * 3
    angles = torch.cat([turns.cos(), turns.sin()], 1)
    turned = reference_layer.rotate(
        want[:, : num_heads + num_kv_heads].cpu(), positions.tolist(), angles
    ).to(cuda)
    cache = torch.full((6 * heads.page_elements,), torch.nan, device=cuda, dtype=dtype)
    bound = case.bind()
    rotate_and_store(
        qkv,
        cache,
        heads,
        1,
        angles.to(cuda),
        positions.to(cuda),
        slots.to(cuda),
        squares=given_squares(r),
        term=bound.shrink((0, 1, 2), x),
        tile=bound.tuning.rotary,
    )
    case.near(qkv[:, : widths[0]], turned[:, :num_heads].flatten(1))
    pages = cache.view(6, 2, 2, num_kv_heads, 16, dim)
    slots = slots.to(cuda)
    keys, values = (pages[slots // 16, 1, side, :, slots % 16] for side in (0, 1))
    case.near(keys, turned[:, num_heads:])
    case.near(values, want[:, num_heads + num_kv_heads :])
    assert int(pages.isfinite().sum()) == case.num * 2 * num_kv_heads * dim


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", [(9, 3, 64), (8, 2, 128)], ids=str)
@pytest.mark.parametrize("most", [1, 16])
@pytest.mark.parametrize("window", [None, 100])
def test_attention(window, most, sizes, dtype, cuda):
    """Long and short contexts; what lies beyond them in their pages is NaN."""
    num_heads, num_kv_heads, dim = sizes
    spans = [(0, 0, 1), (1, 16, 1), (2, 333, 1), (3, 5, 1)]
    if most > 1:
        spans = [(0, 0, 37), (1, 16, 1), (2, 333, 20), (3, 5, 16)]
    heads = Heads(num_heads, num_kv_heads, dim, 16, 2 * num_kv_heads * 16 * dim)
    pages = (torch.randperm(4 * 24) + 1).view(4, 24)
    kv = torch.randn(4 * 24 + 1, 1, 2, num_kv_heads, 16, dim).to(dtype)
    row, start, count = np.array(spans).T
    for r, s, c in spans:
        used = s + c
        kv[pages[r, used // 16], :, :, :, used % 16 :] = torch.nan
        kv[pages[r, used // 16 + 1 :]] = torch.nan
    first, num = np.cumsum(count) - count, int(count.sum())
    tiles = np.zeros((4, num // most + len(spans) + 1), np.int32)
    attention_tiles(row, first, count, start + count, most, tiles)
    q = torch.randn(num, (num_heads + 2 * num_kv_heads) * dim).to(dtype)
    out = torch.full((num, num_heads * dim), torch.nan, device=cuda, dtype=dtype)
    PagedAttention(heads, kv.reshape(-1).to(cuda), 16).attend(
        q.to(cuda),
        Tiles(torch.from_numpy(tiles).to(cuda), most),
        pages.to(torch.int32).to(cuda),
        0,
        window,
        out,
    )
    for (r, s, c), begin in zip(spans, first, strict=True):
        keys, values = (
            kv[pages[r], 0, side].transpose(1, 2).reshape(-1, num_kv_heads, dim) for side in (0, 1)
        )
        for i in range(c):
            one = q[begin + i, : num_heads * dim].view(num_heads, dim)
            wanted = reference_layer.attention(one, keys, values, s + i, window)
            got = out[begin + i].view(num_heads, dim).double().cpu()
            assert (got - wanted).norm() <= TOLERANCE[dtype] * wanted.norm()
