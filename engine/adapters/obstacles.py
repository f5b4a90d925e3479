"""Why a version can't be served at present: it was retired just now, its last load failed, its
answers were refused, or what is pinned leaves too little room. Standard library only.
"""

from __future__ import annotations

from engine.adapters.failures import Failures
from engine.adapters.pins import Pins
from engine.adapters.retired import Retired
from engine.config import AdapterConfig
from engine.errors import ErrorInfo
from engine.types import AdapterRef


class Obstacles:
    """pins: the cache's own. itemsize: bytes of one element. What has an end of its own is told
    here: `failures` by loads, `retired` by orders."""

    def __init__(self, config: AdapterConfig, pins: Pins, itemsize: int) -> None:
        self.failures = Failures(
            config.failure_ttl_s, config.max_failure_ttl_s, config.permanent_failure_ttl_s
        )
        self.retired = Retired()
        self._pins = pins
        self._itemsize = itemsize

    def of(self, ref: AdapterRef, now: float) -> ErrorInfo | None:
        """What a request for it is told; None: nothing is in its way."""
        return (
            self.retired.error(ref, now)
            or self.failures.get(ref.key, now)
            or self._pins.obstacle(ref.num_elements * self._itemsize)
        )

    def forget(self, ref: AdapterRef) -> None:
        """See `messages.Retry`."""
        self.failures.forget(ref.key)
        self.retired.forget(ref.key)
