"""Every step has a graph, and it is one of those that are captured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.buckets import Buckets, PassShape, Reach
from kernels.blocks import group_blocks


@given(st.data())
def test_every_step_fits_the_shape_that_is_chosen_for_it(data):
    max_seqs = data.draw(st.sampled_from([1, 3, 8, 40, 256]))
    max_rank = data.draw(st.sampled_from([1, 16, 17, 100, 256]))
    buckets = Buckets(max_seqs, max_seqs + data.draw(st.integers(1, 700)), max_rank)
    decode = data.draw(st.booleans())
    if decode:
        num = data.draw(st.integers(1, max_seqs))
        counts = np.ones(num, np.int64)
    else:
        num = data.draw(st.integers(1, min(max_seqs, 30)))
        most = buckets.max_tokens // num
        counts = np.array(data.draw(st.lists(st.integers(1, most), min_size=num, max_size=num)))
    of_span = data.draw(
        st.lists(st.integers(-1, data.draw(st.integers(-1, 300))), min_size=num, max_size=num)
    )
    adapters = np.repeat(np.array(of_span, np.int64), counts)
    reach = Reach(data.draw(st.integers(0, max_rank)), data.draw(st.booleans()))
    shape = buckets.choose(adapters, decode, reach)
    assert shape in buckets.shapes()
    assert shape.decode == decode
    assert len(adapters) <= shape.tokens and num <= shape.samples
    assert shape.has_adapters == bool((adapters >= 0).any())
    if shape.has_adapters:
        assert shape.reach.covers(reach)
        group_blocks(adapters, shape.block_rows, shape.num_blocks)
        assert shape.num_blocks <= buckets.max_blocks
        assert shape.num_blocks * shape.block_rows <= buckets.max_block_words


def test_one_adapter_over_all_rows_takes_large_blocks_and_all_different_ones_rows():
    buckets = Buckets(256, 2048, 256)
    rows, reach = np.arange(256), Reach(16, True)
    assert buckets.choose(rows * 0, True, reach) == PassShape(256, 256, True, 16, 18, reach)
    assert buckets.choose(rows % 64, True, reach) == PassShape(256, 256, True, 4, 66, reach)
    assert buckets.choose(rows, True, reach) == PassShape(256, 256, True, 1, 256, reach)
    assert buckets.choose(rows * 0 - 1, True, Reach()) == PassShape(256, 256, True)


@pytest.mark.parametrize(
    ("reach", "served"),
    [
        (Reach(0), Reach(16)),
        (Reach(8), Reach(16)),
        (Reach(1, True), Reach(16, True)),
        (Reach(17), Reach(128, True)),
        (Reach(100, True), Reach(128, True)),
    ],
)
def test_the_cheapest_graph_that_serves_the_adapters(reach: Reach, served: Reach) -> None:
    assert Buckets(8, 64, 100).choose(np.zeros(3, np.int64), True, reach).reach == served


def test_a_rank_beyond_the_largest_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank of 129 is more than 100"):
        Buckets(8, 64, 100).choose(np.zeros(3, np.int64), True, Reach(129))


def test_shapes_are_distinct_and_start_with_the_largest():
    shapes = Buckets(256, 2048, 256).shapes()
    assert len(set(shapes)) == len(shapes)
    assert shapes[0].tokens == 2048


def test_a_step_beyond_the_largest_shape_is_an_error():
    with pytest.raises(ValueError, match="33 is more than 32"):
        Buckets(16, 32, 8).choose(np.zeros(33, np.int64), False, Reach())
