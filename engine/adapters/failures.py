"""Why a version can't be served: loads that have failed, remembered for a while so that not every
request tries again, and what can never be served.

Standard library only.
"""

from __future__ import annotations

from dataclasses import replace

from engine.adapters.version import Version
from engine.errors import AdapterRejected, AdapterUnavailable, ErrorInfo
from engine.messages import LoadDone
from engine.types import AdapterRef


class Failures:
    """ttl_s: how long a failure is remembered; permanent_ttl_s: one that no new try can mend."""

    def __init__(self, ttl_s: float, permanent_ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._permanent_ttl_s = permanent_ttl_s
        self._failures: dict[str, tuple[ErrorInfo, bool, float]] = {}

    def add(self, key: str, error: ErrorInfo, permanent: bool, now: float) -> None:
        self._failures = {k: failure for k, failure in self._failures.items() if failure[2] > now}
        until_s = now + (self._permanent_ttl_s if permanent else self._ttl_s)
        self._failures[key] = (error, permanent, until_s)

    def get(self, key: str, now: float) -> ErrorInfo | None:
        """The error as a request is told it. One that may pass says to come back once it is
        forgotten, at the earliest: sooner, nobody would try again."""
        failure = self._failures.get(key)
        if failure is None or now >= failure[2]:
            return None
        error, permanent, until_s = failure
        if permanent or error.status != AdapterUnavailable.status:
            return error
        return replace(error, retry_after_s=max(error.retry_after_s or 0.0, until_s - now))


def too_large(ref: AdapterRef, num_bytes: int, room: int, where: str) -> ErrorInfo:
    message = (
        f"Adapter {ref.name!r} takes {num_bytes} bytes and adapters have {room} {where}."
        " Use a lower rank or fewer modules, or give it more memory."
    )
    return AdapterRejected(message, code="adapter_too_large").info()


def mismatch(version: Version, done: LoadDone) -> ErrorInfo | None:
    """A load without an error must have laid out exactly the block that the record promises."""
    if done.layout is None:
        message = f"The loader gave no layout for adapter {version.ref.name!r}. Publish it again."
        return AdapterUnavailable(message).info()
    if done.layout.num_elements != version.ref.num_elements:
        message = (
            f"Adapter {version.ref.name!r} has {done.layout.num_elements} elements and its record"
            f" says {version.ref.num_elements}. Publish it again."
        )
        return AdapterRejected(message).info()
    return None
