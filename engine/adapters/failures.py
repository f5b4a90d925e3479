"""Why a version can't be served: loads that have failed, remembered for a while so that not every
request tries again, and what can never be served.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

from engine.adapters.host import HostPool
from engine.adapters.version import Version
from engine.arena import Arena
from engine.errors import AdapterRejected, AdapterUnavailable, ErrorInfo
from engine.messages import LoadDone
from engine.types import AdapterRef


@dataclass(frozen=True, slots=True)
class Failure:
    """num_in_row: loads of a version that have failed one after another. until_s: nobody tries
    again before. stays: nobody can mend it by mending its object."""

    error: ErrorInfo
    num_in_row: int
    until_s: float
    stays: bool

    def told(self, now: float) -> ErrorInfo:
        """The error as a request is told it. One that may pass says to come back once it is
        forgotten, since nobody tries sooner, or when the store has asked to, if that is later. One
        that lasts says no time: that alone mends nothing, however long it is remembered."""
        asked_s = self.error.retry_after_s
        if asked_s is None:
            return self.error
        return replace(self.error, retry_after_s=max(asked_s, self.until_s - now))


class Failures:
    """Each version's own: what fails for one holds nobody else up.

    ttl_s            how long a first failure is remembered: until then nobody tries again. Each
                     one that follows, twice as long, up to max_ttl_s
    permanent_ttl_s  one that no new try can mend

    From the second on, up to half of that time is spread by a hash of the version's key: versions
    that failed together are not tried again together, and decisions stay repeatable.
    """

    def __init__(self, ttl_s: float, max_ttl_s: float, permanent_ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._max_ttl_s = max_ttl_s
        self._permanent_ttl_s = permanent_ttl_s
        self._failures: dict[str, Failure] = {}

    def add(
        self, key: str, error: ErrorInfo, permanent: bool, now: float, *, stays: bool = False
    ) -> ErrorInfo:
        """The error as those are told it who have waited for this load."""
        oldest = now - self._max_ttl_s  # a row ends with a success, or when it is long ago
        self._failures = {k: f for k, f in self._failures.items() if f.until_s > oldest}
        before = self._failures.get(key)
        num = 1 if before is None else before.num_in_row + 1
        ttl_s = self._permanent_ttl_s if permanent else self._backoff_s(key, num)
        self._failures[key] = Failure(error, num, now + ttl_s, stays)
        return self._failures[key].told(now)

    def succeeded(self, key: str) -> None:
        self._failures.pop(key, None)

    def forget(self, key: str) -> None:
        """Its object may have been mended."""
        failure = self._failures.get(key)
        if failure is not None and not failure.stays:
            del self._failures[key]

    def get(self, key: str, now: float) -> ErrorInfo | None:
        """The error as those are told it who come later; None: the next has it loaded anew."""
        failure = self._failures.get(key)
        return None if failure is None or now >= failure.until_s else failure.told(now)

    def _backoff_s(self, key: str, num_in_row: int) -> float:
        doublings = min(num_in_row - 1, 32)
        if not doublings:
            return self._ttl_s
        spread = crc32(f"{key} {num_in_row}".encode()) / (1 << 32)
        return min(self._max_ttl_s, self._ttl_s * 2.0**doublings) * (1 - spread / 2)


def unfit(ref: AdapterRef, num_bytes: int, pool: HostPool, arena: Arena) -> ErrorInfo | None:
    """Why a version of so many bytes can never be served beside anything, with the numbers."""
    if not pool.fits(num_bytes):
        return _too_large(ref, num_bytes, pool.num_bytes, "in host memory")
    if arena.pages_for(num_bytes) > arena.max_adapter_pages:
        room = arena.max_adapter_pages * arena.page_bytes
        return _too_large(ref, num_bytes, room, "on the device")
    return None


def _too_large(ref: AdapterRef, num_bytes: int, room: int, where: str) -> ErrorInfo:
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
