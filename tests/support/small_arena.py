"""Arenas whose pages are a byte each, for layouts made by hand."""

from __future__ import annotations

from engine.arena import Arena


def arena(num_pages: int = 21, reserve: int = 0, max_move: int = 100) -> Arena:
    """`num_pages` - 1 usable positions, 1 .. num_pages - 1."""
    return Arena(num_pages, reserve, page_bytes=1, max_move_bytes=max_move)


def fill(arena: Arena) -> list[int]:
    """A KV page at every free position, lowest first."""
    page_ids = arena.allocate(arena.num_free)
    assert page_ids is not None
    return page_ids


def resident(arena: Arena, num_pages: int) -> int:
    index = arena.claim(num_pages)
    assert index is not None
    arena.begin_upload(index)
    arena.end_upload(index)
    return index
