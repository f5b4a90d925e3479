"""Who gets how much of a GPU, and what is said where it is too little."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.device_memory import GIB, MAX_PAGES, DeviceMemory, arena_pages
from engine.errors import DeviceMemoryShort

H200 = DeviceMemory(
    device="NVIDIA H200",
    total_bytes=140 * GIB,
    free_bytes=139 * GIB,
    weights_bytes=15 * GIB,
    workspace_bytes=3 * GIB,
    graph_bytes=1 * GIB,
)
PAGE = 2 << 20


def test_the_arena_gets_its_share_of_what_is_left() -> None:
    assert H200.left_bytes == 120 * GIB
    assert arena_pages(H200, 0.9, PAGE, least=130) == 108 * GIB // PAGE
    assert arena_pages(H200, 1.0, PAGE, least=130) == 120 * GIB // PAGE


def test_small_pages_are_not_made_without_end() -> None:
    assert arena_pages(H200, 0.9, 4096, least=130) == MAX_PAGES


def test_too_little_is_an_error_with_every_number_and_a_remedy() -> None:
    shared = replace(H200, free_bytes=int(19.25 * GIB))
    with pytest.raises(DeviceMemoryShort) as error:
        arena_pages(shared, 0.9, PAGE, least=130)
    for words in ("19.25 of 140.00 GiB", "15.00", "3.00", "1.00", "0.25 GiB", "115 pages", "130"):
        assert words in error.value.message
    assert "max_model_len" in error.value.message and "larger GPU" in error.value.message


def test_more_taken_than_was_free_leaves_nothing() -> None:
    """What others gave back or took meanwhile must not make it negative."""
    assert replace(H200, free_bytes=10 * GIB).left_bytes == 0
