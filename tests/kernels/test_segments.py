"""Rows grouped by adapter."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels.segments import Segments


def test_the_example_of_the_docstring():
    segments = Segments.of(np.array([-1, 7, 2, 7, 7, -1]), max_rows=2)
    assert segments.num_rows == 6
    assert segments.rows.tolist() == [2, 1, 3, 4]
    assert segments.starts.tolist() == [0, 1, 3, 4]
    assert segments.adapters.tolist() == [2, 7, 7]


def test_no_row_has_an_adapter():
    for adapters in ([], [-1, -1]):
        segments = Segments.of(np.array(adapters, np.int64), max_rows=4)
        segments.check()
        assert segments.starts.tolist() == [0] and not len(segments.adapters)


@given(st.lists(st.integers(-1, 4), max_size=60), st.integers(1, 9))
def test_each_row_is_in_one_segment_of_its_adapter(adapters, max_rows):
    segments = Segments.of(np.array(adapters, np.int64), max_rows)
    segments.check()
    starts = segments.starts.tolist()
    found = {}
    sizes = {}
    for s, adapter in enumerate(segments.adapters.tolist()):
        rows = segments.rows[starts[s] : starts[s + 1]].tolist()
        assert 1 <= len(rows) <= max_rows and rows == sorted(rows)
        found |= dict.fromkeys(rows, adapter)
        sizes.setdefault(adapter, []).append(len(rows))
    assert found == {row: adapter for row, adapter in enumerate(adapters) if adapter >= 0}
    # Only an adapter's last segment may have room left.
    assert all(size == max_rows for each in sizes.values() for size in each[:-1])
