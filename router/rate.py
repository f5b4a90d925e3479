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
        """A busy period begins. The last one's rate stays as a first guess."""
        self._earlier = self.per_second(now)
        self._events.clear()
        self._since = now

    def add(self, now: float, num: int = 1) -> None:
        """`num` events happened."""
        self._events.append((now, num))

    def per_second(self, now: float) -> float:
        """The measured rate, > 0. Without an event in the window: at most one in that time, and no
        more than in the busy period before. `math.inf` if nothing is known at all."""
        start = max(self._since, now - self._window_s)
        if len(self._events) == _KEPT:
            start = max(start, self._events[0][0])
        elapsed = now - start
        if elapsed <= 0:
            return self._earlier
        num = sum(n for time, n in self._events if time >= start)
        return num / elapsed if num else min(self._earlier, 1 / elapsed)

    def seconds_for(self, num: int, now: float) -> float:
        """How long the next `num` events take at the measured rate."""
        return num / self.per_second(now)
