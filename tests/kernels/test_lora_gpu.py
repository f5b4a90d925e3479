from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from kernels import reference
from kernels import table as T
from kernels.blocks import RowBlocks
from kernels.lora_gpu import BoundLoraGpu, LoraGpu
from kernels.tuning import Tile, Tuning
from tests.support.adapters_on_device import RandomAdapters
from tests.support.row_blocks import most_blocks

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# k and columns in uneven pieces, a border between slices inside a tile, k in several parts.
SMALL = Tuning(num_sms=8, shrink=Tile(32), expand=Tile(32))
QKV = [(48, 48), (48, 16), (48, 16)]


def bind(adapters: RandomAdapters, owners: Sequence[int], **options: object) -> BoundLoraGpu:
    block_rows = int(options.pop("block_rows", 16))  # type: ignore[call-overload]
    rank_cap = options.pop("rank_cap", None)
    device = adapters.on_device.device
    num_blocks = most_blocks(len(owners), block_rows, len(adapters.table)) + 1
    blocks = RowBlocks.of(np.array(owners), block_rows, num_blocks, device)
    lora = LoraGpu(
        adapters.on_device,
        adapters.table_on_device,
        adapters.features,
        max_rows=len(owners),
        max_blocks=num_blocks,
        max_rank=max(1, int(adapters.table[:, :, 2].max())),
        **options,  # type: ignore[arg-type]
    )
    lora.parts.fill_(torch.nan)
    bound = lora.bind(blocks, rank_cap)  # type: ignore[arg-type]
    bound.begin()
    return bound


def expected(
    adapters: RandomAdapters,
    owners: Sequence[int],
    modules: Sequence[int],
    x: torch.Tensor,
    y: torch.Tensor,
) -> torch.Tensor:
    widths = [int(adapters.features[m, 1]) for m in modules]
    columns = y.cpu().split(widths, 1)
    return torch.cat(
        [
            reference.linear(x.cpu(), c, adapters.arena, adapters.table, list(owners), m)
            for m, c in zip(modules, columns, strict=True)
        ],
        1,
    )


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The worst row's norm of difference over norm. NaN anywhere is infinitely far."""
    error = (got.cpu().double() - want).norm(dim=-1) / want.norm(dim=-1)
    return float(error.nan_to_num(nan=torch.inf).max())


OWNERS = {
    "none": [-1] * 5,
    "distinct": [2, 0, 1, 3],
    "identical": [1] * 19,
    "skewed": [-1, 0, 1, 0, 0, 3, -1, 0, 0],
}
RANKS: list[Mapping[int, int]] = [{0: 8, 2: 8}, {0: 1, 1: 3, 2: 2}, {}, {0: 33, 1: 16, 2: 40}]


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS.keys())
def test_equals_plain_loops(owners: list[int], device: str) -> None:
    adapters = RandomAdapters(QKV, RANKS, biased=(1,), device=device)
    x, y = torch.randn(len(owners), 48), torch.randn(len(owners), 80)
    want = expected(adapters, owners, (0, 1, 2), x, y)
    y = y.to(device)
    bind(adapters, owners, tuning=SMALL).add((0, 1, 2), x.to(device), y)
    assert off(y, want) <= 1e-5


@pytest.mark.parametrize("block_rows", [1, 4, 32])
def test_rows_in_blocks_of_any_length(block_rows: int, device: str) -> None:
    owners = [3, -1, 3, 0, 3, 0, 3, 3]
    adapters = RandomAdapters(QKV, RANKS, device=device)
    x, y = torch.randn(8, 48), torch.randn(8, 80)
    want = expected(adapters, owners, (0, 1, 2), x, y)
    y = y.to(device)
    bind(adapters, owners, block_rows=max(block_rows, 1)).add((0, 1, 2), x.to(device), y)
    assert off(y, want) <= 1e-5


def test_small_ranks_beside_large_ones_in_graphs_of_their_own(device: str) -> None:
    adapters = RandomAdapters(QKV, [{0: 16, 1: 5}, {2: 12}, {0: 90}], biased=(0,), device=device)
    owners = [0, 1, -1, 0, 1]
    x, y = torch.randn(5, 48), torch.randn(5, 80)
    want = expected(adapters, owners, (0, 1, 2), x, y)
    y = y.to(device)
    bind(adapters, owners, rank_cap=16).add((0, 1, 2), x.to(device), y)
    assert off(y, want) <= 1e-5


@pytest.mark.parametrize("num_sms", [1, 2, 4, 100])
def test_ranks_in_chunks_for_one_program_or_many(num_sms: int, device: str) -> None:
    ranks: list[Mapping[int, int]] = [{0: 70, 1: 16, 2: 33}, {0: 3, 2: 64}]
    adapters = RandomAdapters(QKV, ranks, device=device)
    owners = [0, 1, 1, -1, 0]
    x, y = torch.randn(5, 48), torch.randn(5, 80)
    want = expected(adapters, owners, (0, 1, 2), x, y)
    y = y.to(device)
    tuning = Tuning(num_sms=num_sms, shrink=Tile(32), expand=Tile(32))
    bind(adapters, owners, tuning=tuning).add((0, 1, 2), x.to(device), y)
    assert off(y, want) <= 1e-5


def test_embedding_gathers_its_rows(device: str) -> None:
    adapters = RandomAdapters([(11, 48)], [{0: 5}, {0: 20}], lookup=0, device=device)
    owners, tokens = [0, 1, -1, 1], torch.tensor([3, 10, 2, 0])
    y = torch.randn(4, 48)
    want = reference.embedding(tokens.tolist(), y, adapters.arena, adapters.table, owners, 0)
    y = y.to(device)
    bind(adapters, owners).add_embedding(0, tokens.to(device), y)
    assert off(y, want) <= 1e-5


def test_zero_b_and_absent_modules_leave_the_bits(device: str) -> None:
    adapters = RandomAdapters(QKV, RANKS, device=device)
    for g in range(4):
        for m, (_, out) in enumerate(QKV):
            _, b, rank, *_ = adapters.table[g, m].tolist()
            adapters.on_device[b : b + rank * out] = 0
    y = torch.randn(5, 80, device=device)
    y[:, ::7] = -0.0
    before = y.clone()
    x = torch.randn(5, 48, device=device)
    bind(adapters, [0, 1, 2, 3, -1]).add((0, 1, 2), x, y)
    assert torch.equal(y.view(torch.int32), before.view(torch.int32))


def test_a_row_never_sees_anothers_nan(device: str) -> None:
    owners = [1, 1, 1, -1, 0]
    adapters = RandomAdapters(QKV, RANKS, device=device)
    x, y = torch.randn(5, 48), torch.randn(5, 80)
    want = expected(adapters, owners, (0, 1, 2), x, y)
    x[1], y[1] = torch.nan, torch.nan
    y = y.to(device)
    bind(adapters, owners).add((0, 1, 2), x.to(device), y)
    rows = [0, 2, 3, 4]
    assert off(y[rows], want[rows]) <= 1e-5
    assert bool(y[1, :48].isnan().all())


def by_adapter(
    adapters: RandomAdapters,
    owners: Sequence[int],
    modules: Sequence[int],
    x: torch.Tensor,
    y: torch.Tensor,
) -> torch.Tensor:
    """`expected` for large sweeps: float64 products, all rows of an adapter at once."""
    arena, out = adapters.on_device, y.double().to(adapters.on_device.device)
    x, of_row = x.to(arena.device).double(), torch.tensor(owners, device=arena.device)
    for g in range(len(adapters.table)):
        column = 0
        for m in modules:
            k, width = adapters.features[m].tolist()
            a, b, rank, _, bias, _ = adapters.table[g, m].tolist()
            if rank:
                rows = torch.nonzero(of_row == g).squeeze(1)
                h = x[rows] @ arena[a : a + rank * k].view(rank, k).double().t()
                term = h @ arena[b : b + rank * width].view(rank, width).double()
                if bias:
                    term += arena[bias : bias + width].double()
                scale = float(T.scales(adapters.table)[g, m])
                out[rows, column : column + width] += scale * term
            column += width
    return out.cpu()


FULL = {
    "smollm": [(576, 576), (576, 192), (576, 192)],
    "llama-qkv": [(4096, 4096), (4096, 1024), (4096, 1024)],
    "llama-down": [(14336, 4096)],
    "head": [(576, 49152)],
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE.keys(), ids=str)
@pytest.mark.parametrize("shape", FULL.keys())
@pytest.mark.parametrize("block_rows", [1, 4, 16, 64])
def test_sweep(shape: str, dtype: torch.dtype, block_rows: int, cuda: str) -> None:
    features = FULL[shape]
    modules = tuple(range(len(features)))
    every = [dict.fromkeys(modules, r) for r in (1, 8, 16, 17, 64, 128)]
    ranks = [*every, {0: 16}, {modules[-1]: 256}]
    adapters = RandomAdapters(features, ranks, dtype=dtype, biased=(0,), device=cuda)
    rng = np.random.default_rng(0)
    for count, adapter_count in [(1, 1), (3, 8), (32, 8), (133, 3), (256, 8)]:
        owners = rng.integers(-1, adapter_count, count).tolist()
        x = torch.randn(count, features[0][0]).to(dtype)
        y = torch.randn(count, sum(f[1] for f in features)).to(dtype)
        want = by_adapter(adapters, owners, modules, x, y)
        got = []
        for _ in range(2):
            out = y.to(cuda)
            bind(adapters, owners, block_rows=block_rows).add(modules, x.to(cuda), out)
            got.append(out)
        assert off(got[0], want) <= TOLERANCE[dtype], (count, adapter_count)
        assert torch.equal(got[0], got[1])


@pytest.mark.gpu
def test_one_graph_serves_every_batch(cuda: str) -> None:
    features = [(4096, 4096), (4096, 1024), (4096, 1024)]
    ranks: list[Mapping[int, int]] = [{0: 8, 1: 8, 2: 8}, {0: 64}, {2: 16}, {1: 40, 2: 3}]
    adapters = RandomAdapters(features, ranks, dtype=torch.bfloat16, device=cuda)
    bound = bind(adapters, [0] * 32 + [1] * 32)
    x = torch.randn(64, 4096, device=cuda, dtype=torch.bfloat16)
    y = torch.randn(64, 6144, device=cuda, dtype=torch.bfloat16)
    start = y.clone()

    def step() -> None:
        y.copy_(start)
        bound.begin()
        bound.add((0, 1, 2), x, y)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    rng = np.random.default_rng(1)
    for _ in range(4):
        owners = np.sort(rng.integers(-1, 4, 64))
        bound.blocks.copy_(RowBlocks.of(owners, 16, bound.blocks.num_blocks, cuda))
        graph.replay()
        replayed = y.clone()
        step()
        assert torch.equal(y, replayed)
        want = expected(adapters, owners.tolist(), (0, 1, 2), x, start)
        assert off(y, want) <= 1e-2
