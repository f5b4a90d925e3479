from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.blocks import RowBlocks
from kernels.entries import sort_blocks
from kernels.residual import PART_BYTES, part_width
from kernels.tuning import LONG, MAX_CHUNKS, Tuning, block_rows_for, rank_caps, tuning_for
from tests.support.row_blocks import most_blocks


def test_the_example() -> None:
    blocks = RowBlocks.of(np.array([-1, 7, 2, 7, 7, -1]), 2, 6)
    assert blocks.rows.tolist() == [[0, 5], [2, -1], [1, 3], [4, -1], [-1, -1], [-1, -1]]
    assert blocks.adapters.tolist() == [-1, 2, 7, 7, -1, -1]
    blocks.check()


@given(st.lists(st.integers(-1, 6), max_size=60), st.sampled_from([1, 2, 4, 16]))
def test_every_row_is_in_one_block_of_its_adapter(owners: list[int], block_rows: int) -> None:
    most = most_blocks(len(owners), block_rows, 7)
    blocks = RowBlocks.of(np.array(owners, np.int64), block_rows, most)
    blocks.check()
    for rows, adapter in zip(blocks.rows.tolist(), blocks.adapters.tolist(), strict=True):
        assert all(owners[n] == adapter for n in rows if n >= 0)


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks of 2 rows are needed"):
        RowBlocks.of(np.array([0, 0, 0, 1]), 2, 2)


def sorted_blocks(
    table: torch.Tensor, blocks: RowBlocks, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, entries)"""
    num = blocks.num_blocks
    weights = torch.empty(num, dtype=torch.int64, device=device)
    rows = torch.full(blocks.rows.shape, -9, dtype=torch.int32, device=device)
    entries = torch.full((num, *table.shape[1:]), -9, device=device)
    sort_blocks(table.to(device), blocks, weights, rows, entries)
    return rows.cpu(), entries.cpu()


def test_large_ranks_come_first(device: str) -> None:
    table = torch.arange(3 * 4 * 6).view(3, 4, 6)
    table[:, :, 2] = torch.tensor([[8, 0, 8, 0], [1, 1, 1, 1], [0, 0, 0, 64]])
    blocks = RowBlocks.of(np.array([-1, 0, 1, 2, 0, 0]), 2, 7, device)
    rows, entries = sorted_blocks(table, blocks, device)
    assert rows.tolist() == [[3, -1], [1, 4], [5, -1], [2, -1], [0, -1], [-1, -1], [-1, -1]]
    absent = torch.zeros_like(table[0])
    assert torch.equal(entries, torch.stack([*table[[2, 0, 0, 1]], absent, absent, absent]))


def test_more_blocks_than_are_compared_at_once(device: str) -> None:
    ranks = np.random.default_rng(0).integers(0, 9, 300)
    table = torch.zeros(300, 1, 6, dtype=torch.int64)
    table[:, 0, 2] = torch.from_numpy(ranks)
    blocks = RowBlocks.of(np.arange(300), 1, 300, device)
    rows, entries = sorted_blocks(table, blocks, device)
    assert rows.flatten().tolist() == np.argsort(-ranks, kind="stable").tolist()
    assert torch.equal(entries, table[rows.flatten().long()])


@given(st.integers(1, 4096), st.integers(1, 20000), st.integers(1, 64))
def test_parts_are_powers_of_two_within_bounds(programs: int, k: int, most: int) -> None:
    tuning = Tuning()
    parts = tuning.num_parts(programs, k, most)
    assert parts & (parts - 1) == 0
    assert 1 <= parts <= min(most, tuning.max_parts if k <= LONG else tuning.long_parts)
    # No part begins beyond the end of k.
    assert (parts - 1) * tuning.shrink.width < k


@given(st.integers(1, 4096), st.integers(1, 512))
def test_ranks_are_dealt_to_a_power_of_two_of_programs(programs: int, max_rank: int) -> None:
    tuning = Tuning()
    for rank_cap in rank_caps(max_rank):
        chunks = tuning.num_chunks(programs, rank_cap)
        assert chunks & (chunks - 1) == 0
        assert 1 <= chunks <= min(MAX_CHUNKS, rank_cap // 16)
        assert chunks == 1 or chunks * programs <= tuning.waves * tuning.num_sms


@pytest.mark.parametrize("rows", [1, 16, 32, 256])
@pytest.mark.parametrize("adapters", [1, 3, 20, 256])
def test_there_is_a_tuning_for_every_batch(rows: int, adapters: int) -> None:
    block_rows = block_rows_for(rows, adapters)
    tuning = tuning_for(block_rows, most_blocks(rows, block_rows, adapters))
    # Whole parts of a norm in every graph: only then are its bits the same in all of them.
    assert tuning.residual.width % part_width(tuning.residual, torch.bfloat16) == 0
    assert tuning.residual.width >= PART_BYTES // 2
