"""How often something has been happening. Pure: times come in as arguments, in seconds."""

from __future__ import annotations

import math
from collections import deque

_KEPT = 256


class Rate:
    """Events a second over the last `window_s` of a busy period; idle time doesn't count."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._events: deque[tuple[float, int]] = deque(maxlen=_KEPT)
        self._since = 0.0
        self._earlier = math.inf

    def begin(self, now: float) -> None:
        """A busy period begins. The last one, up to its last event, stays as a first guess."""
        if self._events:
            self._earlier = self.per_second(self._events[-1][0])
        self._events.clear()
        self._since = now

    def add(self, now: float, num: int = 1) -> None:
        """`num` events happened."""
        self._events.append((now, num))

    def per_second(self, now: float) -> float:
        """The measured rate, > 0. Where nothing has happened in the window: at most one event in
        the time since the last, and no more than in the busy period before. `math.inf` while
        nothing at all is known."""
        start = max(self._since, now - self._window_s)
        if len(self._events) == _KEPT:
            start = max(start, self._events[0][0])
        num = sum(n for time, n in self._events if time >= start)
        if num and now > start:
            return num / (now - start)
        quiet_s = now - (self._events[-1][0] if self._events else self._since)
        return min(self._earlier, 1 / quiet_s) if quiet_s > 0 else self._earlier

    def seconds_for(self, num: int, now: float) -> float:
        """How long the next `num` events take at the measured rate."""
        return num / self.per_second(now)
