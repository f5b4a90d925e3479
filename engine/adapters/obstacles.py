"""Why a version can't be served: it is too large for any room here; or at present, since it was
retired just now, its last load failed, its answers were refused, or what is pinned leaves too
little room. Standard library only.
"""

from __future__ import annotations

from engine.adapters.counts import TierCounts
from engine.adapters.failures import Failures, unfit
from engine.adapters.host import HostPool
from engine.adapters.pins import Pins
from engine.adapters.retired import Retired
from engine.arena import Arena
from engine.config import AdapterConfig
from engine.errors import ErrorInfo
from engine.types import AdapterRef


class Obstacles:
    """pins, counts: the cache's own. itemsize: bytes of one element. What has an end of its own is
    told here: `failures` by loads, `retired` by orders."""

    def __init__(
        self,
        config: AdapterConfig,
        arena: Arena,
        pool: HostPool,
        pins: Pins,
        counts: TierCounts,
        itemsize: int,
    ) -> None:
        self.failures = Failures(
            config.failure_ttl_s, config.max_failure_ttl_s, config.permanent_failure_ttl_s
        )
        self.retired = Retired()
        self._arena = arena
        self._pool = pool
        self._pins = pins
        self._counts = counts
        self._itemsize = itemsize

    def of(self, ref: AdapterRef, now: float) -> ErrorInfo | None:
        """What a request for it is told; None: nothing is in its way."""
        num_bytes = ref.num_elements * self._itemsize
        return (
            unfit(ref, num_bytes, self._pool, self._arena)
            or self.retired.error(ref, now)
            or self.failures.get(ref.key, now)
            or self._pins.obstacle(num_bytes)
        )

    def refuse(self, ref: AdapterRef, error: ErrorInfo, now: float) -> None:
        """Requests for it are answered with this error for `permanent_failure_ttl_s`."""
        self._counts.num_refused += self.failures.get(ref.key, now) is None
        self.failures.add(ref.key, error, True, now, stays=True)

    def forget(self, ref: AdapterRef) -> None:
        """See `messages.Retry`."""
        self.failures.forget(ref.key)
        self.retired.forget(ref.key)
