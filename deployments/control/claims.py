"""Who works on a version's objects, within one process: publishing and sweeping never meet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Claims:
    def __init__(self) -> None:
        self._claimed: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, prefix: str) -> Iterator[None]:
        """`prefix` is the caller's alone until the context ends; waits for whoever has it."""
        with self._changed:
            self._changed.wait_for(lambda: prefix not in self._claimed)
            self._claimed.add(prefix)
        try:
            yield
        finally:
            with self._changed:
                self._claimed.remove(prefix)
                self._changed.notify_all()
