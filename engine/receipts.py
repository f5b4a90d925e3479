"""How many messages a process has read, in memory that outlives it.

A process that is killed takes with it what it had not read of its channel, and its peer can't tell
that from what it was working on. So each frame is counted here before anybody in the process may
take it: what isn't counted can't be what it died of. Standard library only.
"""

from __future__ import annotations

import mmap
import os

NUM_BYTES = 8


def open_memory() -> int:
    """A file descriptor of new memory for `Receipts`, to be inherited by whoever counts."""
    fd = os.memfd_create("loraplex-receipts")
    os.ftruncate(fd, NUM_BYTES)
    return fd


class Receipts:
    """One writer counts, any process may look. fd: see `open_memory`; closed here."""

    def __init__(self, fd: int) -> None:
        # One aligned word: whoever looks sees the number before or the one after, never a mixture.
        self._num = memoryview(mmap.mmap(fd, NUM_BYTES)).cast("Q")
        os.close(fd)

    @property
    def num_read(self) -> int:
        return self._num[0]

    def add(self, num: int) -> None:
        self._num[0] += num
