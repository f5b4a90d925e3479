from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels import reference, reference_layer
from kernels.blocks import RowBlocks
from kernels.gate import silu_gate
from kernels.lora_gpu import BoundLoraGpu, LoraGpu
from kernels.norm import Squares, norm_rows
from kernels.residual import add_residual, embed, squares_of
from kernels.rotary import Heads, rotate_and_store
from kernels.tuning import Tile, Tuning
from tests.support.adapters_on_device import RandomAdapters

TILE = Tile(32, 4, 2)
OWNERS = [1, -1, 0, 1, 1, 2]
EPS = 1e-5


def bound(adapters: RandomAdapters, block_rows: int) -> BoundLoraGpu:
    device = str(adapters.on_device.device)
    lora = LoraGpu(
        adapters.on_device,
        adapters.table_on_device,
        adapters.features,
        max_rows=len(OWNERS),
        max_blocks=7,
        max_rank=40,
        tuning=Tuning(num_sms=8, shrink=TILE, expand=TILE),
    )
    lora.parts.fill_(torch.nan)
    lora.factors.fill_(torch.nan)
    of = lora.bind(RowBlocks.of(np.array(OWNERS), block_rows, 7, device))
    of.begin()
    return of


def with_term(
    adapters: RandomAdapters, x: torch.Tensor, y: torch.Tensor, modules: tuple[int, ...]
) -> torch.Tensor:
    """y [N, sum of out] plus the terms, float64."""
    widths = [int(adapters.features[m, 1]) for m in modules]
    parts = [
        reference.linear(x, part, adapters.arena, adapters.table, OWNERS, m)
        for m, part in zip(modules, y.split(widths, 1), strict=True)
    ]
    return torch.cat(parts, 1)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> bool:
    error = (got.cpu().double() - want).norm(dim=-1) / want.norm(dim=-1)
    return bool((error.nan_to_num(nan=torch.inf) <= tolerance).all())


def given_squares(r: torch.Tensor, device: str) -> Squares:
    """Squares as an earlier kernel leaves them, in two parts."""
    halves = r.double().chunk(2, 1)
    parts = torch.stack([(half**2).sum(1) for half in halves], 1).float()
    return Squares(parts.to(device), r.shape[1], EPS)


@pytest.mark.parametrize("given", [False, True], ids=["computed", "given"])
@pytest.mark.parametrize("block_rows", [1, 2])
def test_gate(block_rows: int, given: bool, device: str) -> None:
    """given: the norm's factors by the shrink."""
    features = [(48, 40), (48, 40)]
    ranks = [{0: 8, 1: 3}, {0: 20}, {1: 16}]
    adapters = RandomAdapters(features, ranks, biased=(1,), device=device)
    of = bound(adapters, block_rows)
    x, base, r = torch.randn(6, 48), torch.randn(6, 80), torch.randn(6, 48)
    squares = given_squares(r, device)
    factor = reference_layer.factor(r, EPS)
    want = reference_layer.silu_gate(with_term(adapters, x * factor.float(), base * factor, (0, 1)))
    out = torch.full((6, 40), torch.nan, device=device)
    term = of.shrink((0, 1), x.to(device), squares=squares if given else None)
    silu_gate(base.to(device), out, TILE, squares, term=term)
    assert close(out, want)


def test_gate_without_adapters(device: str) -> None:
    y, bias = torch.randn(11, 80), torch.randn(80)
    out = torch.full((11, 40), torch.nan, device=device)
    silu_gate(y.to(device), out, TILE, bias=bias.to(device))
    assert close(out, reference_layer.silu_gate(y + bias))


@pytest.mark.parametrize("block_rows", [1, 2])
def test_residual(block_rows: int, device: str) -> None:
    adapters = RandomAdapters([(40, 48)], [{0: 8}, {0: 33}, {}], biased=(0,), device=device)
    of = bound(adapters, block_rows)
    x_in, y, r, weight = torch.randn(6, 40), torch.randn(6, 48), torch.randn(6, 48), torch.randn(48)
    want = r + with_term(adapters, x_in, y, (0,))
    squares = squares_of(torch.empty(6, 48, device=device), EPS, TILE)
    r, x = r.to(device), torch.full((6, 48), torch.nan, device=device)
    term = of.shrink((0,), x_in.to(device))
    add_residual(y.to(device), r, weight.to(device), x, squares, TILE, term)
    assert close(r, want)
    assert close(x, want * weight)
    assert close(squares.parts.sum(1, keepdim=True), (want**2).sum(1, keepdim=True))


def test_embedding_starts_the_residual(device: str) -> None:
    adapters = RandomAdapters([(11, 48)], [{0: 5}, {0: 20}, {}], lookup=0, device=device)
    of = bound(adapters, 2)
    table, weight, tokens = torch.randn(11, 48), torch.randn(48), torch.tensor([3, 10, 2, 0, 10, 1])
    want = reference.embedding(
        tokens.tolist(), table[tokens], adapters.arena, adapters.table, OWNERS, 0
    )
    r, x = (torch.full((6, 48), torch.nan, device=device) for _ in range(2))
    squares = squares_of(r, EPS, TILE)
    tokens = tokens.to(device)
    term = of.lookup(0, tokens)
    embed(table.to(device), tokens, r, weight.to(device), x, squares, TILE, term)
    assert close(r, want)
    assert close(x, want * weight)


@pytest.mark.parametrize("dim", [16, 12])
@pytest.mark.parametrize("block_rows", [0, 1, 2])
def test_rotary(dim: int, block_rows: int, device: str) -> None:
    heads = Heads(4, 2, dim, page_tokens=4, page_elements=2 * 2 * 2 * 4 * dim)
    features = [(48, 4 * dim), (48, 2 * dim), (48, 2 * dim)]
    adapters = RandomAdapters(features, [{0: 8, 2: 20}, {1: 3}, {}], biased=(2,), device=device)
    x, qkv, r = torch.randn(6, 48), torch.randn(6, 8 * dim), torch.randn(6, 48)
    bias, norms = torch.randn(8 * dim), torch.randn(2, dim)
    positions, slots = torch.tensor([0, 5, 3, 9, 1, 2]), torch.tensor([4, 9, 7, 11, 1, 2])
    angles = torch.randn(10, dim)
    factor = reference_layer.factor(r, EPS)
    want = qkv.double() * factor + bias
    term = None
    if block_rows:
        of = bound(adapters, block_rows)
        want = with_term(adapters, x * factor.float(), want, (0, 1, 2))
        term = of.shrink((0, 1, 2), x.to(device), squares=given_squares(r, device))
    want = want.view(6, 8, dim)
    turn = [positions.tolist(), angles]
    q = reference_layer.rotate(want[:, :4], *turn, norms[0], 1e-6)
    k = reference_layer.rotate(want[:, 4:6], *turn, norms[1], 1e-6)
    cache = torch.full((3 * heads.page_elements,), torch.nan, device=device)
    out = qkv.to(device)
    rotate_and_store(
        out,
        cache,
        heads,
        1,
        angles.to(device),
        positions.to(device),
        slots.to(device),
        squares=given_squares(r, device),
        bias=bias.to(device),
        head_norms=norms.to(device),
        head_eps=1e-6,
        term=term,
    )
    assert close(out[:, : 4 * dim].view(6, 4, dim), q)
    assert torch.equal(out[:, 4 * dim :].cpu(), qkv[:, 4 * dim :])
    pages = cache.view(3, 2, 2, 2, 4, dim)
    for n, slot in enumerate(slots.tolist()):
        assert close(pages[slot // 4, 1, 0, :, slot % 4], k[n])
        assert close(pages[slot // 4, 1, 1, :, slot % 4], want[n, 6:])
    assert int(pages.isfinite().sum()) == 6 * 2 * 2 * dim


def test_norm_of_chosen_rows(device: str) -> None:
    r, weight, index = torch.randn(5, 48), torch.randn(48), torch.tensor([4, 0])
    out = torch.full((2, 48), torch.nan, device=device)
    norm_rows(r.to(device), index.to(device), weight.to(device), EPS, out)
    assert close(out, (r * reference_layer.factor(r, EPS) * weight)[index])


def test_launchers_refuse_parts_that_do_not_fit(device: str) -> None:
    r = torch.randn(2, 48, device=device)
    squares = Squares(torch.empty(2, 3, device=device), 48, EPS)
    with pytest.raises(ValueError, match="2 parts"):
        add_residual(r, r, r[0], r, squares, TILE)
