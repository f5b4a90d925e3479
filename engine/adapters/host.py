"""Who holds which bytes of the host memory that the loader and the core share.

Bookkeeping only: offsets into one memfd, first fit, neighbours joined when freed. What lies there
is written by the loader and read by uploads. Standard library only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

ALIGN_BYTES = 4096


class HostPool:
    """num_bytes: size of the shared memory. Blocks start on multiples of `ALIGN_BYTES`."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes - num_bytes % ALIGN_BYTES
        self.num_free = self.num_bytes
        self._held: dict[int, int] = {}
        self._gaps: list[tuple[int, int]] = [(0, self.num_bytes)] if self.num_bytes else []

    @property
    def num_blocks(self) -> int:
        return len(self._held)

    def allocate(self, num_bytes: int) -> int | None:
        """Offset of a free block of at least `num_bytes`, or None where no gap is as large."""
        size = block_bytes(num_bytes)
        for i, (start, length) in enumerate(self._gaps):
            if length >= size:
                if length == size:
                    del self._gaps[i]
                else:
                    self._gaps[i] = (start + size, length - size)
                self._held[start] = size
                self.num_free -= size
                return start
        return None

    def free(self, offset: int) -> None:
        """Gives a block back. Raises KeyError for an offset that is not held."""
        size = self._held.pop(offset)
        self.num_free += size
        start, end = offset, offset + size
        i = bisect_left(self._gaps, (offset, 0))
        if i < len(self._gaps) and self._gaps[i][0] == end:
            end += self._gaps.pop(i)[1]
        if i and sum(self._gaps[i - 1]) == offset:
            start = self._gaps.pop(i - 1)[0]
        insort(self._gaps, (start, end - start))

    def fits(self, num_bytes: int) -> bool:
        """Whether the block would fit into an empty pool."""
        return block_bytes(num_bytes) <= self.num_bytes

    def room_beside(self, offsets: Iterable[int]) -> int:
        """Bytes of the largest block that would fit if these were the only ones held."""
        starts = sorted(offsets)
        ends = [0, *(start + self._held[start] for start in starts)]
        return max(start - end for end, start in zip(ends, [*starts, self.num_bytes], strict=True))

    def check(self) -> None:
        """Blocks and gaps tile the memory, and no two gaps touch."""
        parts = sorted(
            [(o, n, True) for o, n in self._held.items()] + [(o, n, False) for o, n in self._gaps]
        )
        end, last_held = 0, True
        for start, size, held in parts:
            assert start == end, f"hole or overlap at {end}"
            assert size > 0 and size % ALIGN_BYTES == 0
            assert held or last_held, f"two gaps touch at {start}"
            end, last_held = start + size, held
        assert end == self.num_bytes
        assert self.num_free == sum(n for _, n in self._gaps)
        assert self._gaps == sorted(self._gaps)


def block_bytes(num_bytes: int) -> int:
    """What a block of so many bytes takes of the pool."""
    return max(1, -(-num_bytes // ALIGN_BYTES)) * ALIGN_BYTES
