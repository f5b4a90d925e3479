"""What an arena refuses, and what adapters leave to sequences."""

from __future__ import annotations

import pytest

from engine.arena import Arena
from engine.errors import AdapterRejected
from engine.pages import NO_PLAN
from tests.support.small_arena import arena, fill, resident


def test_adapters_never_take_the_reserve() -> None:
    a = arena(21, reserve=6)
    assert a.max_adapter_pages == 14
    assert a.claim(10) is not None
    assert a.claim(5) is None and a.claim(4) is not None
    assert a.num_free == 6 and len(fill(a)) == 6
    a.check()


def test_kv_in_use_counts_towards_the_reserve() -> None:
    a = arena(21, reserve=6)
    fresh = a.allocate(6)
    assert fresh is not None and a.claim(14) is not None and a.num_free == 0
    a.check()


def test_an_adapter_that_never_fits_is_refused_with_both_numbers() -> None:
    a = Arena(21, 6, page_bytes=100, max_move_bytes=1000)
    with pytest.raises(AdapterRejected, match="1500 bytes.* 1400 ") as caught:
        a.claim(1401)
    assert caught.value.code == "adapter_too_large"
    assert a.num_adapters == 0


def test_an_arena_without_room_for_one_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="20 pages"):
        arena(20, reserve=20)


def test_rounding_is_under_a_tenth_from_ten_pages_on() -> None:
    a = Arena(1000, 0, page_bytes=100, max_move_bytes=1000)
    for num_bytes in (1001, 1050, 2222, 9999):
        index = a.claim(num_bytes)
        assert index is not None
        assert 0 <= a.rounding_bytes < 0.1 * num_bytes
        a.release(index, NO_PLAN)
    assert a.rounding_bytes == 0


@pytest.mark.parametrize("stage", ["claimed", "resident"])
def test_misuse_of_the_upload_is_an_error(stage: str) -> None:
    a = arena()
    index = resident(a, 2) if stage == "resident" else a.claim(2)
    assert index is not None
    with pytest.raises(ValueError, match="no upload in flight"):
        a.end_upload(index)
    if stage == "claimed":
        a.begin_upload(index)
        with pytest.raises(ValueError, match="upload in flight"):
            a.release(index, NO_PLAN)


def test_a_page_is_freed_once() -> None:
    a = arena()
    pages = a.allocate(2)
    assert pages is not None
    a.free(pages, NO_PLAN)
    with pytest.raises(ValueError, match="not in use"):
        a.free(pages, NO_PLAN)
