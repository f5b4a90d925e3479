"""The shared host memory's bookkeeping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.host import ALIGN_BYTES, HostPool


def test_blocks_are_aligned_and_do_not_overlap() -> None:
    pool = HostPool(10 * ALIGN_BYTES + 17)
    assert pool.num_bytes == 10 * ALIGN_BYTES
    offsets = [pool.allocate(size) for size in (1, ALIGN_BYTES, ALIGN_BYTES + 1)]
    assert offsets == [0, ALIGN_BYTES, 2 * ALIGN_BYTES]
    assert pool.num_free == 6 * ALIGN_BYTES
    pool.check()


def test_neighbours_that_are_freed_make_one_gap() -> None:
    pool = HostPool(3 * ALIGN_BYTES)
    blocks = [pool.allocate(ALIGN_BYTES) for _ in range(3)]
    assert pool.allocate(1) is None
    for offset in (blocks[0], blocks[2]):
        pool.free(offset)
    assert pool.allocate(2 * ALIGN_BYTES) is None, "free, but not side by side"
    pool.free(blocks[1])
    assert pool.allocate(3 * ALIGN_BYTES) == 0
    pool.check()


def test_what_is_not_held_cannot_be_freed() -> None:
    pool = HostPool(ALIGN_BYTES)
    with pytest.raises(KeyError):
        pool.free(0)


def test_a_pool_of_no_bytes_holds_nothing() -> None:
    pool = HostPool(0)
    assert pool.allocate(1) is None and not pool.fits(1)
    pool.check()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9 * ALIGN_BYTES)), max_size=80))
def test_any_order_of_allocating_and_freeing(events: list[tuple[bool, int]]) -> None:
    pool = HostPool(24 * ALIGN_BYTES)
    held: dict[int, int] = {}
    for is_free, size in events:
        if is_free and held:
            offset = sorted(held)[size % len(held)]
            del held[offset]
            pool.free(offset)
        else:
            offset = pool.allocate(size)
            if offset is None:
                continue
            assert all(offset + size <= o or o + s <= offset for o, s in held.items())
            held[offset] = size
        pool.check()
    for offset in held:
        pool.free(offset)
    pool.check()
    assert pool.num_free == pool.num_bytes
