"""Adapters on their way between the tiers, counted. Standard library only."""

from __future__ import annotations

from collections import Counter

from engine.adapters.version import Version
from engine.errors import ErrorInfo
from engine.histogram import SECONDS, STEP_SECONDS, Counts, Histogram
from engine.messages import LoadDone

SOURCES = ("disk", "store")


class TierCounts:
    """Since the start.

    loads  ended loads, by (where from, cause, "ok" or an error code). One that failed may not have
           got as far as its source says
    come   versions that have come to the device since the last step was decided
    num_evicted  versions that have left it, retired ones included
    num_refused  versions refused for what they answered
    """

    def __init__(self) -> None:
        self.loads: Counter[tuple[str, str, str]] = Counter()
        self.come: set[str] = set()
        self.num_evicted = self.num_refused = 0
        self._coming: set[str] = set()
        self._load_s = {source: Histogram(SECONDS) for source in SOURCES}
        self._upload_s = Histogram(STEP_SECONDS)

    def loaded(self, version: Version, done: LoadDone, error: ErrorInfo | None) -> None:
        source = "disk" if done.from_disk else "store"
        self.loads[source, version.cause, "ok" if error is None else error.code] += 1
        if error is None:
            self._load_s[source].add(done.seconds)

    def uploaded(self, version: Version) -> None:
        self._upload_s.add(version.upload_s)
        self._coming.add(version.key)

    def begin_step(self) -> None:
        """The next step is about to be decided."""
        if self.come or self._coming:
            self.come, self._coming = self._coming, set()

    def load_s(self) -> tuple[tuple[str, Counts], ...]:
        """Seconds of the loads that succeeded, by where from."""
        return tuple((source, seconds.read()) for source, seconds in self._load_s.items())

    def upload_s(self) -> Counts:
        return self._upload_s.read()
