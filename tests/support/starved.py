"""Measurements in real time, done again where the machine was too busy for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PERIOD_S = 0.01
STARVED_S = 0.03
MOST_TRIES = 3


class Lag:
    """`with`: by how much `worst_s` a thread that slept was at most woken late."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Lag:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(PERIOD_S):
            now = time.monotonic()
            self.worst_s = max(self.worst_s, now - before - PERIOD_S)
            before = now


def measured(measure: Callable[[int], None]) -> None:
    """`measure`, given the number of the try, asserts what it finds. Where that fails, and somebody
    had to wait for a processor meanwhile, it is tried again."""
    for number in range(MOST_TRIES):
        with Lag() as lag:
            try:
                return measure(number)
            except AssertionError:
                if number == MOST_TRIES - 1 or lag.worst_s < STARVED_S:
                    raise
