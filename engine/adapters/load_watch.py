"""When a load did what. Standard library only."""

from __future__ import annotations

from collections.abc import Callable

from engine.timeline import LoadStep


class LoadWatch:
    """Of one load, by one thread: each step ends where the next begins.

    clock: seconds, monotonic
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._name = ""
        self._began_s = self._since_s = clock()
        self._steps: list[LoadStep] = []

    def begin(self, name: str) -> None:
        """The next step; "" for none."""
        now = self._clock()
        if self._name:
            self._steps.append(LoadStep(self._name, self._since_s, now))
        self._name, self._since_s = name, now

    def end(self) -> tuple[float, tuple[LoadStep, ...]]:
        """(seconds since the watch was made, all steps, the last of which ends now)."""
        self.begin("")
        return self._since_s - self._began_s, tuple(self._steps)
