"""The tenants' tokens a minute: one bucket each for the whole service, kept by control.

    order   {"v": 1, "tenant", "per_minute", "used", "at_least", "wanted"}
    answer  {"granted": tokens, "retry_after_s": seconds until there are `at_least`, "left": tokens}

used: what an ingress has used beyond what it was granted, or, negative, gives back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import InvalidRequest
from router.token_bucket import TokenBucket

TOKENS_VERSION = 1
MAX_BUCKETS = 10_000


class TokenBook:
    """clock: seconds, monotonic. A tenant never heard of has a minute's tokens: so it is for every
    tenant after control has begun anew."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def lease(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Raises InvalidRequest for an order of another release, or one that can't be read."""
        if order.get("v") != TOKENS_VERSION:
            raise InvalidRequest(f"Tokens version {order.get('v')} is not {TOKENS_VERSION}.")
        try:
            tenant, per_minute = str(order["tenant"]), float(order["per_minute"])
            used, at_least, wanted = (float(order[k]) for k in ("used", "at_least", "wanted"))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"The order can't be read: {error!r}.") from None
        if per_minute <= 0:
            raise InvalidRequest("per_minute must be > 0.")
        now = self._clock()
        bucket = self._bucket(tenant, per_minute, now)
        bucket.use(used, now)
        left = bucket.left(now)
        granted = min(wanted, left) if left >= at_least else 0.0
        granted = max(0.0, granted)
        bucket.use(granted, now)
        retry_s = 0.0 if left >= at_least else bucket.seconds_until(at_least, now)
        return {"granted": granted, "retry_after_s": retry_s, "left": left}

    def _bucket(self, tenant: str, per_minute: float, now: float) -> TokenBucket:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._forget(now)
            bucket = self._buckets[tenant] = TokenBucket(per_minute, now)
        bucket.set_limit(per_minute, now)
        return bucket

    def _forget(self, now: float) -> None:
        """Those that are as good as new."""
        for bucket in self._buckets.values():
            bucket.use(0.0, now)
        self._buckets = {t: b for t, b in self._buckets.items() if not b.is_full}
