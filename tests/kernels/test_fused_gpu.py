"""The fused kernels in bf16 at the sizes of an 8B model, ranks from 1 to 256 in one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from kernels import reference_layer
from kernels.blocks import RowBlocks
from kernels.gate import silu_gate
from kernels.lora_gpu import BoundLoraGpu, LoraGpu, Term
from kernels.residual import add_residual, squares_of
from kernels.rotary import Heads, rotate_and_store
from kernels.tuning import Tile, Tuning, tuning_for
from tests.kernels.test_lora_gpu import by_adapter, off
from tests.support.adapters_on_device import RandomAdapters
from tests.support.row_blocks import most_blocks

ROWS, HIDDEN, INNER = 61, 1024, 1408
HEADS = Heads(4, 2, 128, page_tokens=16, page_elements=2 * 2 * 16 * 128)
FEATURES = [(HIDDEN, 512), (HIDDEN, 256), (HIDDEN, 256), (512, HIDDEN)]
FEATURES += [(HIDDEN, INNER), (HIDDEN, INNER)]
QKV, OUT, GATE_UP = (0, 1, 2), (3,), (4, 5)
EVERY: list[Mapping[int, int]] = [dict.fromkeys(range(6), r) for r in (1, 8, 16, 17, 64, 100, 256)]
RANKS: list[Mapping[int, int]] = [*EVERY, {0: 16, 4: 40, 5: 8}, {2: 256, 3: 33, 4: 4}]
OWNERS = np.random.default_rng(0).integers(-1, len(RANKS), ROWS)
BFLOAT = torch.bfloat16


def bound(adapters: RandomAdapters, block_rows: int) -> BoundLoraGpu:
    num_blocks = most_blocks(ROWS, block_rows, len(RANKS)) + 1
    lora = LoraGpu(
        adapters.on_device,
        adapters.table_on_device,
        adapters.features,
        max_rows=ROWS,
        max_blocks=num_blocks,
        max_rank=256,
    )
    lora.parts.fill_(torch.nan)
    of = lora.bind(RowBlocks.of(OWNERS, block_rows, num_blocks, "cuda"))
    of.begin()
    return of


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(*size).to(BFLOAT)


def summed(
    adapters: RandomAdapters, modules: tuple[int, ...], x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    return by_adapter(adapters, OWNERS.tolist(), modules, x, y)


def gate(of: BoundLoraGpu | None, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.full((ROWS, INNER), torch.nan, dtype=BFLOAT, device="cuda")
    term = None if of is None else of.shrink(GATE_UP, x)
    silu_gate(y, out, tuning(of).gate, term=term)
    return out


def residual(of: BoundLoraGpu | None, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    r = torch.ones(ROWS, HIDDEN, dtype=BFLOAT, device="cuda")
    out = torch.full_like(r, torch.nan)
    tile: Tile = tuning(of).residual
    term: Term | None = None if of is None else of.shrink(OUT, x)
    squares = squares_of(r, 1e-5, tile)
    squares.parts.fill_(torch.nan)
    add_residual(y, r, torch.ones(HIDDEN, dtype=BFLOAT, device="cuda"), out, squares, tile, term)
    assert torch.equal(r, out)
    assert torch.allclose(squares.parts.sum(1), (r.float() ** 2).sum(1), rtol=1e-5)
    return torch.cat([r, squares.parts.view(BFLOAT)], 1)


def rotary(of: BoundLoraGpu | None, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    qkv, steps = y.clone(), torch.arange(ROWS, device="cuda")
    angles = torch.cat([torch.ones(ROWS, 64), torch.zeros(ROWS, 64)], 1).cuda()
    cache = torch.full((4 * HEADS.page_elements,), torch.nan, dtype=BFLOAT, device="cuda")
    term = None if of is None else of.shrink(QKV, x)
    tile = tuning(of).rotary
    rotate_and_store(qkv, cache, HEADS, 0, angles, steps, steps, term=term, tile=tile)
    kv = cache.view(4, 2, 2, 16, 128).permute(0, 3, 1, 2, 4).reshape(64, 512)[:ROWS]
    return torch.cat([qkv[:, :512], kv], 1)


def tuning(of: BoundLoraGpu | None) -> Tuning:
    return tuning_for(0) if of is None else of.tuning


Kernel = Callable[[BoundLoraGpu | None, torch.Tensor, torch.Tensor], torch.Tensor]
KERNELS: Mapping[Kernel, tuple[int, ...]] = {gate: GATE_UP, residual: OUT, rotary: QKV}


def expected(kernel: Kernel, y: torch.Tensor) -> torch.Tensor:
    if kernel is gate:
        return reference_layer.silu_gate(y)
    return y + 1 if kernel is residual else y


@pytest.mark.gpu
@pytest.mark.parametrize("block_rows", [1, 4, 8, 16])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_against_float64(kernel: Kernel, block_rows: int, cuda: str) -> None:
    modules = KERNELS[kernel]
    adapters = RandomAdapters(FEATURES, RANKS, dtype=BFLOAT, biased=(0, 3), device=cuda)
    x = drawn(ROWS, FEATURES[modules[0]][0])
    y = drawn(ROWS, sum(FEATURES[m][1] for m in modules))
    want = expected(kernel, summed(adapters, modules, x, y))
    first, second = (kernel(bound(adapters, block_rows), y.to(cuda), x.to(cuda)) for _ in range(2))
    assert off(first[:, : want.shape[1]], want) <= 1e-2
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))


@pytest.mark.gpu
@pytest.mark.parametrize("block_rows", [1, 4, 8, 16])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_zero_b_gives_the_bits_of_the_base(kernel: Kernel, block_rows: int, cuda: str) -> None:
    modules = KERNELS[kernel]
    adapters = RandomAdapters(FEATURES, RANKS, dtype=BFLOAT, device=cuda)
    for _, b, rank, *_ in adapters.table.view(-1, 6).tolist():
        adapters.on_device[b : b + rank * INNER] = 0
    adapters.on_device.nan_to_num_(nan=0.0)
    x = drawn(ROWS, FEATURES[modules[0]][0]).to(cuda)
    y = drawn(ROWS, sum(FEATURES[m][1] for m in modules)).to(cuda)
    base = kernel(None, y, x)
    got = kernel(bound(adapters, block_rows), y, x)
    assert torch.equal(got.view(torch.int16), base.view(torch.int16))
