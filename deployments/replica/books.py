"""What a replica's core says of tenants, kept for those who ask: service for other replicas, usage
for control. Plain values, so that releases can mix.

    usage's order   {"v": 1, "since": {epoch: the number of the last answer of that life}}
    answer          {"epoch": a word, "number", "usage": {tenant: {field: total since the start}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.replica.activity import Activity
from deployments.replica.shared_service import ServiceBook
from engine.errors import InvalidRequest
from engine.messages import CoreStats, Measures
from engine.usage import TenantUsage

USAGE_VERSION = 1


class Books:
    """epoch: a word of this life of the core's alone, since all counters begin at 0 in each."""

    def __init__(self, epoch: str) -> None:
        self.service = ServiceBook(epoch)
        self.activity = Activity()
        self._epoch = epoch
        self._usage: dict[str, tuple[int, TenantUsage]] = {}  # with the number of its last change
        self._number = 0

    def heard(self, stats: CoreStats | None, measures: Measures | None = None) -> None:
        """From the core."""
        if stats is None:
            return
        self.service.heard(stats.service)
        self.activity.heard(stats, measures)
        self._number += bool(stats.usage)
        for used in stats.usage:
            self._usage[used.tenant] = (self._number, used)

    def usage(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """What has changed since the asker last heard of it. Raises InvalidRequest."""
        since = order.get("since")
        if order.get("v") != USAGE_VERSION or not isinstance(since, Mapping):
            raise InvalidRequest(f"Usage version {order.get('v')} is not {USAGE_VERSION}.")
        known = int(since.get(self._epoch, 0))
        news = {t: used for t, (number, used) in self._usage.items() if number > known}
        return {
            "epoch": self._epoch,
            "number": self._number,
            "usage": {t: dict(list(used._asdict().items())[1:]) for t, used in news.items()},
        }
