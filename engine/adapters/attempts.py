"""How often, and how long, one call to a store tries. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.config import StoreOptions
from engine.errors import AdapterUnavailable


@dataclass(frozen=True, slots=True)
class Waiting:
    """What passes time, as arguments. `random` gives numbers in [0, 1)."""

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    random: Callable[[], float]


class Attempts:
    """Those of one call, from its beginning on. Used by one thread.

    After an error that may pass, a pause that doubles, half of it random, and no shorter than the
    store asked for; `max_attempts` in a row without progress, and `deadline_s` for all together.
    """

    def __init__(self, options: StoreOptions, waiting: Waiting) -> None:
        self._options = options
        self._waiting = waiting
        self._began_s = waiting.clock()
        self._num_failed = 0
        self._num_in_row = 0

    def progress(self, error: Callable[[], AdapterUnavailable]) -> None:
        """Something has arrived. Raises `error` where the deadline has passed all the same: a
        store that drips must not hold a load for ever."""
        self._num_in_row = 0
        if self._elapsed_s > self._options.deadline_s:
            raise self._last(error())

    def pause(self, error: AdapterUnavailable, asked_s: float = 0.0) -> None:
        """Wait for the next attempt. Raises `error` where none is left or none can help."""
        self._num_failed += 1
        self._num_in_row += 1
        if error.retry_after_s is None:
            raise error
        options = self._options
        pause_s = min(options.max_pause_s, options.first_pause_s * 2 ** (self._num_in_row - 1))
        pause_s = max(asked_s, pause_s * (1 + self._waiting.random()) / 2)
        is_late = self._elapsed_s + pause_s >= options.deadline_s
        if is_late or self._num_in_row >= options.max_attempts:
            raise self._last(error)
        self._waiting.sleep(pause_s)

    @property
    def _elapsed_s(self) -> float:
        return self._waiting.clock() - self._began_s

    def _last(self, error: AdapterUnavailable) -> AdapterUnavailable:
        """The error, which also says what was tried."""
        if self._num_failed > 1:
            tried = f" ({self._num_failed} attempts failed in {self._elapsed_s:.0f} s)"
            error.message += tried
            error.args = (error.message,)
        return error
