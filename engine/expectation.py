"""How long a tenant's next answer will be. Standard library only."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

HISTORY = 128


class Expectation:
    """The 90th percentile of the tenant's last `HISTORY` answers that ended by themselves."""

    __slots__ = ("_ascending", "_recent")

    def __init__(self) -> None:
        self._recent: deque[int] = deque()  # oldest first
        self._ascending: list[int] = []  # the same, sorted

    def remember(self, num_output: int) -> None:
        self._recent.append(num_output)
        insort(self._ascending, num_output)
        if len(self._recent) > HISTORY:
            del self._ascending[bisect_left(self._ascending, self._recent.popleft())]

    def output(self, default: int) -> int:
        """Tokens expected of the next answer; `default` before there was one."""
        if not self._ascending:
            return default
        return self._ascending[-(-len(self._ascending) * 9 // 10) - 1]

    def check(self) -> None:
        assert sorted(self._recent) == self._ascending and len(self._recent) <= HISTORY
