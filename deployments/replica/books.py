"""What a replica's core says of tenants, kept for those who ask: service for other replicas, usage
for control. Plain values, so that releases can mix.

    usage's order   {"v": 1, "since": {epoch: the number of the last answer of that life},
                     "counted": {epoch: the number up to which control has counted that life},
                     "ended": [epoch, ...]}
    answer          {"epoch": a word, "number", "usage": {tenant: {field: total since the start}}}

`counted` is more than `since` where control has begun anew. `ended`: lives that control has closed,
since they were silent for so long. One that hears so begins another, whose counters are what was
not counted of the closed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.replica.activity import Activity
from deployments.replica.shared_service import ServiceBook
from engine.core_stats import CoreStats, Measures
from engine.errors import InvalidRequest
from engine.usage import TenantUsage

USAGE_VERSION = 1
FIELDS = TenantUsage._fields[1:]

Answer = tuple[int, Mapping[str, TenantUsage]]
"""Its number, and what it told."""
MAX_UNSETTLED = 4
"""Answers kept: the first since control last said how far it has counted this life, which it may
have closed since, and the newest."""


class Books:
    """epoch: a word of this life of the core's alone, since all counters begin at 0 in each."""

    def __init__(self, epoch: str) -> None:
        self.service = ServiceBook(epoch)
        self.activity = Activity()
        self.usage = UsageBook(epoch)

    def heard(self, stats: CoreStats | None, measures: Measures | None = None) -> None:
        """From the core."""
        if stats is None:
            return
        self.service.heard(stats.service)
        self.activity.heard(stats, measures)
        self.usage.heard(stats.usage)


class UsageBook:
    """Tenants' usage, as control counts it."""

    def __init__(self, epoch: str) -> None:
        self._word = epoch
        self._num_ended = 0
        self._used: dict[str, tuple[int, TenantUsage]] = {}  # with the number of its last change
        self._number = 0
        self._answers: list[Answer] = []  # of which it isn't known whether control counted them
        self._settled = 0  # the number up to which `_heard` goes
        self._heard: dict[str, TenantUsage] = {}  # what control has counted
        self._before: dict[str, TenantUsage] = {}  # of that: under lives that have ended

    def heard(self, usage: Iterable[TenantUsage]) -> None:
        """From the core: totals since its start, of tenants that have used something since."""
        changed = {used.tenant: used for used in usage}
        self._number += bool(changed)
        self._used |= {tenant: (self._number, used) for tenant, used in changed.items()}

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """What has changed since the asker last heard of it. Raises InvalidRequest."""
        since, ended = order.get("since"), order.get("ended", [])
        if order.get("v") != USAGE_VERSION or not isinstance(since, Mapping):
            raise InvalidRequest(f"Usage version {order.get('v')} is not {USAGE_VERSION}.")
        # Releases before say no more than `since`, which is 0 where control has begun anew.
        counted = int(order.get("counted", since).get(self._epoch, 0))
        if self._epoch in ended:
            self._settle(counted or self._number)
            self._begin_anew()
        elif counted:
            self._settle(counted)
        known = int(since.get(self._epoch, 0))
        news = {t: used for t, (number, used) in self._used.items() if number > known}
        del self._answers[MAX_UNSETTLED - 1 :]
        self._answers.append((self._number, news))
        return {
            "epoch": self._epoch,
            "number": self._number,
            "usage": {tenant: self._counted(used) for tenant, used in news.items()},
        }

    @property
    def _epoch(self) -> str:
        return f"{self._word}.{self._num_ended}" if self._num_ended else self._word

    def _settle(self, counted: int) -> None:
        """Control has counted up to this number, and since it asks one order after the other, what
        it was told beyond is lost. Where the answer of that number isn't kept, the next one counts
        as if it had arrived: rather lost than counted twice."""
        for number, news in self._answers:
            if self._settled < counted:
                self._heard |= news
                self._settled = number
        self._answers.clear()

    def _begin_anew(self) -> None:
        """Control said so upon an answer that it didn't count."""
        self._num_ended += 1
        self._settled = 0
        self._before = dict(self._heard)
        self._number = 1
        self._used = {
            tenant: (int(used != self._before.get(tenant)), used)
            for tenant, (_, used) in self._used.items()
        }

    def _counted(self, used: TenantUsage) -> dict[str, float]:
        """By field, without what ended lives had told."""
        before = self._before.get(used.tenant, TenantUsage(used.tenant))
        return {name: getattr(used, name) - getattr(before, name) for name in FIELDS}
