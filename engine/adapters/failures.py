"""Loads that have failed, remembered for a while, so that not every request tries again.

Standard library only.
"""

from __future__ import annotations

from engine.errors import ErrorInfo


class Failures:
    """ttl_s: how long a failure is remembered; permanent_ttl_s: one that no new try can mend."""

    def __init__(self, ttl_s: float, permanent_ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._permanent_ttl_s = permanent_ttl_s
        self._failures: dict[str, tuple[ErrorInfo, float]] = {}

    def add(self, key: str, error: ErrorInfo, permanent: bool, now: float) -> None:
        self._failures = {k: failure for k, failure in self._failures.items() if failure[1] > now}
        self._failures[key] = (error, now + (self._permanent_ttl_s if permanent else self._ttl_s))

    def get(self, key: str, now: float) -> ErrorInfo | None:
        error, until_s = self._failures.get(key, (None, now))
        return error if now < until_s else None
