"""Whole pages copied within an arena: any number of moves, in order, in one launch.

Semantics, for moves (source, target, num) one after another: pages target .. target + num - 1
become what pages source .. source + num - 1 were before that move; the ranges may overlap.

A page goes to a page, so no column depends on another one: a program has a stretch of columns,
which it copies page after page, and programs need not wait for each other. `order_copies` groups
what can be loaded at once: within a group nothing is read or written that the group wrote before. A
range that slides by a single page is copied from its far end, where each copy writes what the one
before has read: such copies are a group too, since a group loads all before it stores any.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.segments import Ints

COLUMNS = 3
"""Of an order: source, target, and how many copies its group has where it is the first of one."""
GROUP = 8
BLOCK = 1024


@triton.jit
def _move(
    arena,  # [pages, page_words] int32
    orders,  # [n + 1, 3] int64; the last one's group has no copies
    page_words: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u = tl.arange(0, GROUP)
    first = 0
    size = tl.load(orders + 2)
    while size > 0:
        order = orders + (first + u) * 3
        source = tl.load(order, mask=u < size, other=0)
        target = tl.load(order + 1, mask=u < size, other=0)
        mask = (u < size)[:, None] & (column < page_words)[None, :]
        words = tl.load(arena + source[:, None] * page_words + column[None, :], mask=mask)
        # Other threads of this program may write what one reads, and read what it wrote.
        tl.debug_barrier()
        tl.store(arena + target[:, None] * page_words + column[None, :], words, mask=mask)
        tl.debug_barrier()
        first += size.to(tl.int32)
        size = tl.load(orders + first * 3 + 2)


def order_copies(moves: Iterable[tuple[int, int, int]]) -> Ints:
    """[n + 1, 3]: the page copies of moves (source, target, num), in groups; ends with zeros."""
    orders: list[list[int]] = []
    written: set[int] = set()
    for source, target, num in moves:
        for i in reversed(range(num)) if target > source else range(num):
            clash = source + i in written or target + i in written
            if clash or not written or len(written) == GROUP:
                written.clear()
                orders.append([source + i, target + i, 1])
                first = orders[-1]
            else:
                orders.append([source + i, target + i, 0])
                first[2] += 1
            written.add(target + i)
    return np.array([*orders, [0, 0, 0]], np.int64)


def move_pages(arena: torch.Tensor, orders: torch.Tensor) -> None:
    """Carry out `order_copies` on arena [pages, elements], a page being whole 4-byte words."""
    words = arena.view(torch.int32)
    page_words = words.shape[1]
    _move[(triton.cdiv(page_words, BLOCK),)](
        words, orders, page_words, GROUP=GROUP, BLOCK=BLOCK, num_warps=8
    )
