"""Every step has a graph, and it is one of those that are captured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.buckets import Buckets, PassShape
from kernels.blocks import group_blocks


@given(st.data())
def test_every_step_fits_the_shape_that_is_chosen_for_it(data):
    max_seqs = data.draw(st.sampled_from([1, 3, 8, 40, 256]))
    buckets = Buckets(max_seqs, max_seqs + data.draw(st.integers(1, 700)))
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
    shape = buckets.choose(adapters, decode)
    assert shape in buckets.shapes()
    assert shape.decode == decode
    assert len(adapters) <= shape.tokens and num <= shape.samples
    assert shape.has_adapters == bool((adapters >= 0).any())
    if shape.has_adapters:
        group_blocks(adapters, shape.block_rows, shape.num_blocks)
        assert shape.num_blocks <= buckets.max_blocks
        assert shape.num_blocks * shape.block_rows <= buckets.max_block_words


def test_one_adapter_over_all_rows_takes_large_blocks_and_all_different_ones_rows():
    buckets = Buckets(256, 2048)
    rows = np.arange(256)
    assert buckets.choose(rows * 0, True) == PassShape(256, 256, True, 16, 18)
    assert buckets.choose(rows % 64, True) == PassShape(256, 256, True, 4, 66)
    assert buckets.choose(rows, True) == PassShape(256, 256, True, 1, 256)
    assert buckets.choose(rows * 0 - 1, True) == PassShape(256, 256, True)


def test_shapes_are_distinct_and_start_with_the_largest():
    shapes = Buckets(256, 2048).shapes()
    assert len(set(shapes)) == len(shapes)
    assert shapes[0].tokens == 2048


def test_a_step_beyond_the_largest_shape_is_an_error():
    with pytest.raises(ValueError, match="33 is more than 32"):
        Buckets(16, 32).choose(np.zeros(33, np.int64), False)
