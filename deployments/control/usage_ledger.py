"""What tenants have used of the whole service, replicas that are gone counted in. Pure.

Each life of a core has counters that begin at 0 and only grow. The ledger keeps the last of each
life, so nothing counts twice however often it is told. Lives long gone are added up under `past`,
in one record that names them: whatever is cut off in between, each counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.replica.books import USAGE_VERSION
from engine.usage import TenantUsage

USAGE = "usage/"
PAST = "past"
RECORD_VERSION = 1
GONE_S = 3600.0
FIELDS = TenantUsage._fields[1:]

Counts = dict[str, float]
"""By field."""


@dataclass(slots=True)
class _Life:
    """missing_s: since when it has not answered where others have; None: it has."""

    missing_s: float | None = None
    number: int = 0
    tenants: dict[str, Counts] = field(default_factory=dict)
    is_saved: bool = False


class UsageLedger:
    """Times are seconds on one clock of the caller's."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._past: dict[str, Counts] = {}
        self._folded: set[str] = set()
        self._undeleted: set[str] = set()
        """Of those: whose records may still be there."""

    def load(self, records: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """(key, value) of all that is saved. Lives that `past` has are no more than to be deleted,
        see `fold`."""
        lives = dict(records)
        past = lives.pop(USAGE + PAST, None)
        if past is not None:
            self._past = {t: _counts(told) for t, told in past["tenants"].items()}
            self._folded = set(past["lives"])
        for key, value in lives.items():
            epoch = key.removeprefix(USAGE)
            if epoch in self._folded:
                self._undeleted.add(epoch)
                continue
            tenants = {t: _counts(told) for t, told in value["tenants"].items()}
            self._lives[epoch] = _Life(tenants=tenants, is_saved=True)

    def order(self) -> dict[str, Any]:
        """To the replicas, see `books`."""
        since = {epoch: life.number for epoch, life in self._lives.items()}
        return {"v": USAGE_VERSION, "since": since}

    def read(self, answers: Sequence[Mapping[str, Any]], now: float) -> None:
        """From the replicas that have answered. Counters never fall, whatever is told."""
        for answer in answers:
            if str(answer["epoch"]) not in self._folded:
                self._read(str(answer["epoch"]), answer)
        answered = {str(answer["epoch"]) for answer in answers}
        for epoch, life in self._lives.items():
            if epoch in answered:
                life.missing_s = None
            elif answered and life.missing_s is None:
                life.missing_s = now

    def _read(self, epoch: str, answer: Mapping[str, Any]) -> None:
        life = self._lives.setdefault(epoch, _Life())
        life.number = int(answer["number"])
        for tenant, told in answer["usage"].items():
            known = life.tenants.setdefault(tenant, dict.fromkeys(FIELDS, 0))
            for name, value in _counts(told).items():
                known[name] = max(known[name], value)
            life.is_saved = False

    def total(self, tenant: str) -> Counts:
        parts = [self._past, *(life.tenants for life in self._lives.values())]
        found = [part[tenant] for part in parts if tenant in part]
        return {name: sum(counts[name] for counts in found) for name in FIELDS}

    def tenants(self) -> list[str]:
        """Of whom anything is known, in order."""
        parts = [self._past, *(life.tenants for life in self._lives.values())]
        return sorted(set[str]().union(*parts))

    def unsaved(self) -> dict[str, dict[str, Any]]:
        """The records to write, which nothing changes any more; they count as saved."""
        records = {}
        for epoch, life in self._lives.items():
            if not life.is_saved:
                records[USAGE + epoch] = _record(life.tenants)
                life.is_saved = True
        return records

    def unsave(self) -> None:
        """What was to be written couldn't be."""
        for life in self._lives.values():
            life.is_saved = False

    def fold(self, now: float) -> tuple[dict[str, Any], list[str]] | None:
        """Adds lives long gone to the past: the record of the past, to be written first, and the
        keys to delete then. The same, and more, until they are `deleted`. None where there are
        none."""
        gone = [
            epoch
            for epoch, life in self._lives.items()
            if life.missing_s is not None and now - life.missing_s > GONE_S
        ]
        for epoch in gone:
            for tenant, counts in self._lives.pop(epoch).tenants.items():
                past = self._past.setdefault(tenant, dict.fromkeys(FIELDS, 0))
                for name in FIELDS:
                    past[name] += counts[name]
        self._folded.update(gone)
        self._undeleted.update(gone)
        if not self._undeleted:
            return None
        lives = sorted(self._undeleted)
        return {**_record(self._past), "lives": lives}, [USAGE + epoch for epoch in lives]

    def deleted(self, keys: Iterable[str]) -> None:
        """The past is written, and these are deleted."""
        self._undeleted.difference_update(key.removeprefix(USAGE) for key in keys)


def _record(tenants: Mapping[str, Counts]) -> dict[str, Any]:
    return {"v": RECORD_VERSION, "tenants": {t: dict(counts) for t, counts in tenants.items()}}


def _counts(told: Mapping[str, Any]) -> Counts:
    """Fields that another release doesn't know are 0, those that this one doesn't are dropped."""
    return {name: told.get(name, 0) for name in FIELDS}
