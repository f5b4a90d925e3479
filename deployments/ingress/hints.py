"""Which requests are worth a word to the replica before they come. Pure.

A version that an ingress has just sent a request for is near already; one that it hasn't seen for a
while, as at the beginning of a session, may be cold. Its load can begin while the request's prompt
is still turned into tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

QUIET_S = 10.0
MAX_KEPT = 10_000


class Hints:
    """clock: seconds, monotonic. quiet_s: how long a version is not seen before it is worth one."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        quiet_s: float = QUIET_S,
        max_kept: int = MAX_KEPT,
    ) -> None:
        self._clock = clock
        self._quiet_s = quiet_s
        self._max_kept = max_kept
        self._seen_s: OrderedDict[str, float] = OrderedDict()

    def see(self, key: str) -> bool:
        """A request for this version (`ref.key`) has come: whether to send word ahead of it."""
        now = self._clock()
        last_s = self._seen_s.pop(key, None)
        self._seen_s[key] = now
        if len(self._seen_s) > self._max_kept:
            self._seen_s.popitem(last=False)
        return last_s is None or now - last_s >= self._quiet_s
