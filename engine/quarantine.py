"""Adapters whose output is not a finite number, time and again. Standard library only."""

from __future__ import annotations

from collections import deque

from engine.errors import AdapterRejected, ErrorInfo, LoraplexError
from engine.types import AdapterRef

NOT_FINITE = "The model's output for this request is not a finite number. Check its adapter."


class Quarantine:
    """A request whose row isn't finite ends with an error; its neighbours don't notice. An adapter
    with `max_faults` such requests within `window_s` seconds is refused for as long.

    Faults of the base are counted for nobody.
    """

    def __init__(self, max_faults: int, window_s: float) -> None:
        self._max_faults = max_faults
        self._window_s = window_s
        self._faults: dict[str, deque[float]] = {}

    def fault(self, ref: AdapterRef | None, now: float) -> tuple[ErrorInfo, bool]:
        """One more. What the request is told, and whether its adapter is refused from now on."""
        if ref is None:
            return LoraplexError(NOT_FINITE, code="not_finite").info(), False
        faults = self._faults.setdefault(ref.key, deque())
        faults.append(now)
        while faults[0] < now - self._window_s:
            faults.popleft()
        if len(faults) < self._max_faults:
            return LoraplexError(NOT_FINITE, code="not_finite").info(), False
        self._forget_old(now)
        message = (
            f"Adapter {ref.name!r} is in quarantine: its output was not a finite number in"
            f" {self._max_faults} requests. Publish a version whose weights are sound."
        )
        return AdapterRejected(message, code="adapter_quarantined").info(), True

    def _forget_old(self, now: float) -> None:
        oldest = now - self._window_s
        self._faults = {key: faults for key, faults in self._faults.items() if faults[-1] >= oldest}
