"""What tenants have used of the whole service, replicas that are gone counted in. Pure.

Each life of a core has counters that begin at 0 and only grow. The ledger keeps the last of each
life, so nothing counts twice however often it is told. Lives long gone are added up under `past`,
and remembered by name: one that answers after all is told that it has ended, and goes on as
another (`deployments.replica.books`).

Tenants are divided among sheets, and each sheet of each life is a record of its own, so that a
change of one tenant's writes, and is told to whoever follows the registry, with few others. A sheet
of the past names the lives whose same sheet it has: whatever is cut off in between, each counts
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from zlib import crc32

from deployments.replica.books import FIELDS, USAGE_VERSION

USAGE = "usage/"
GONE = "usage-gone/"
PAST = "past"
RECORD_VERSION = 2
NUM_SHEETS = 64
"""Of each life. Records are by sheet, so another number needs another RECORD_VERSION."""
GONE_VERSION = 1
GONE_S = 3600.0
MAX_GONE = 4096
"""Names of lives that are gone."""

Counts = dict[str, float]
"""By field."""
Sheet = dict[str, Counts]
"""By tenant."""


@dataclass(slots=True)
class _Life:
    """missing_s: since when it has not answered where others have; None: it has. number: of its
    last answer here. counted: of the last that may be in its sheets; 0: it isn't known. unsaved:
    numbers of sheets."""

    missing_s: float | None = None
    number: int = 0
    counted: int = 0
    sheets: defaultdict[int, Sheet] = field(default_factory=lambda: defaultdict(dict))
    unsaved: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Gone:
    """number: as it came to the past. counted: as a `_Life`'s."""

    number: int
    counted: int


class UsageLedger:
    """Times are seconds on one clock of the caller's."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._past: defaultdict[int, Sheet] = defaultdict(dict)
        self._undeleted: set[tuple[str, int]] = set()
        """Lives' sheets that the past has, and whose records may still be there."""
        self._gone: dict[str, _Gone] = {}
        """Lives that are in the past."""
        self._unwritten: set[str] = set()
        """Of those: whose names are yet to be written."""
        self._returned: set[str] = set()
        """Of those: who have answered since."""

    def load(self, records: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """(key, value) of all that is saved. What the past has is no more than to be deleted, see
        `fold`. Records of another version are left alone."""
        told = list(records)
        names = [(k, v) for k, v in told if k.startswith(GONE) and v["v"] == GONE_VERSION]
        for key, value in sorted(names, key=lambda item: item[1]["number"]):
            gone = _Gone(value["number"], value.get("counted", 0))
            self._gone[key.removeprefix(GONE)] = gone
        sheets = [(k, v) for k, v in told if k.startswith(USAGE) and v["v"] == RECORD_VERSION]
        found = {_place(key): value for key, value in sheets}
        folded: set[tuple[str, int]] = set()
        for (epoch, number), value in found.items():
            if epoch == PAST:
                self._past[number] = _sheet(value)
                folded.update((life, number) for life in value["lives"])
        for (epoch, number), value in found.items():
            if (epoch, number) in folded:
                self._undeleted.add((epoch, number))
            elif epoch != PAST:
                life = self._lives.setdefault(epoch, _Life())
                life.sheets[number] = _sheet(value)
                life.counted = max(life.counted, value.get("counted", 0))
        for epoch, _ in sorted(folded):
            self._is_gone(epoch, 0)

    def order(self) -> dict[str, Any]:
        """To the replicas, see `books`."""
        lives = {e: life for e, life in self._lives.items() if e not in self._gone}
        return {
            "v": USAGE_VERSION,
            "since": {epoch: life.number for epoch, life in lives.items()},
            "counted": {epoch: life.counted for epoch, life in lives.items()}
            | {epoch: self._gone[epoch].counted for epoch in self._returned},
            "ended": sorted(self._returned),
        }

    def read(self, answers: Sequence[Mapping[str, Any]], now: float) -> None:
        """From the replicas that have answered. Counters never fall, whatever is told."""
        by_epoch = {str(answer["epoch"]): answer for answer in answers}
        self._returned |= by_epoch.keys() & self._gone.keys()
        answered = by_epoch.keys() - self._gone.keys()
        for epoch in answered:
            self._read(epoch, by_epoch[epoch])
        for epoch, life in self._lives.items():
            if epoch in answered:
                life.missing_s = None
            elif answers and life.missing_s is None:
                life.missing_s = now

    def _read(self, epoch: str, answer: Mapping[str, Any]) -> None:
        life = self._lives.setdefault(epoch, _Life())
        life.number = int(answer["number"])
        life.counted = max(life.counted, life.number)
        for tenant, told in answer["usage"].items():
            number = _number(tenant)
            known = life.sheets[number].setdefault(tenant, dict.fromkeys(FIELDS, 0))
            for name, value in _counts(told).items():
                known[name] = max(known[name], value)
            life.unsaved.add(number)

    def total(self, tenant: str) -> Counts:
        number = _number(tenant)
        sheets = [self._past.get(number), *(v.sheets.get(number) for v in self._lives.values())]
        found = [sheet[tenant] for sheet in sheets if sheet and tenant in sheet]
        return {name: sum(counts[name] for counts in found) for name in FIELDS}

    def tenants(self) -> list[str]:
        """Of whom anything is known, in order."""
        lives = (life.sheets for life in self._lives.values())
        return sorted(
            {t for sheets in (self._past, *lives) for sheet in sheets.values() for t in sheet}
        )

    def unsaved(self) -> dict[str, dict[str, Any]]:
        """The records to write, which nothing changes any more; they count as saved."""
        records = {}
        for epoch, life in self._lives.items():
            counted = {"counted": life.counted}
            records.update(
                {_key(epoch, n): _record(life.sheets[n]) | counted for n in life.unsaved}
            )
            life.unsaved.clear()
        return records

    def unsave(self, keys: Iterable[str]) -> None:
        """These were to be written and couldn't be."""
        for epoch, number in map(_place, keys):
            if epoch in self._lives:
                self._lives[epoch].unsaved.add(number)

    def fold(self, now: float) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Adds lives long gone to the past: the records of the past, to be written first and in
        this order (names before what is theirs), and the keys to delete then. The same, and more,
        until they are `kept`."""
        for epoch, life in list(self._lives.items()):
            if life.missing_s is not None and now - life.missing_s > GONE_S:
                self._fold(epoch, self._lives.pop(epoch))
        lives: defaultdict[int, list[str]] = defaultdict(list)
        for epoch, number in sorted(self._undeleted):
            lives[number].append(epoch)
        records: dict[str, dict[str, Any]] = {
            GONE + epoch: {"v": GONE_VERSION, **asdict(self._gone[epoch])}
            for epoch in sorted(self._unwritten)
        }
        for number, epochs in lives.items():
            records[_key(PAST, number)] = {**_record(self._past[number]), "lives": epochs}
        too_many = [GONE + epoch for epoch in list(self._gone)[:-MAX_GONE]]
        return records, [_key(*place) for place in sorted(self._undeleted)] + too_many

    def _fold(self, epoch: str, life: _Life) -> None:
        for number, sheet in life.sheets.items():
            for tenant, counts in sheet.items():
                past = self._past[number].setdefault(tenant, dict.fromkeys(FIELDS, 0))
                for name in FIELDS:
                    past[name] += counts[name]
            self._undeleted.add((epoch, number))
        self._is_gone(epoch, life.counted)

    def _is_gone(self, epoch: str, counted: int) -> None:
        if epoch not in self._gone:
            number = 1 + max((gone.number for gone in self._gone.values()), default=0)
            self._gone[epoch] = _Gone(number, counted)
            self._unwritten.add(epoch)

    def kept(self, written: Iterable[str], deleted: Iterable[str]) -> None:
        """Keys of records that are written now, and of those that are deleted."""
        self._unwritten.difference_update(key.removeprefix(GONE) for key in written)
        for key in deleted:
            if key.startswith(GONE):
                epoch = key.removeprefix(GONE)
                self._gone.pop(epoch, None)
                self._returned.discard(epoch)
            else:
                self._undeleted.discard(_place(key))


def _number(tenant: str) -> int:
    """Of the tenant's sheet."""
    return crc32(tenant.encode()) % NUM_SHEETS


def _key(epoch: str, number: int) -> str:
    return f"{USAGE}{epoch}/{number}"


def _place(key: str) -> tuple[str, int]:
    """The life, or PAST, and the number of the sheet."""
    epoch, _, number = key.removeprefix(USAGE).rpartition("/")
    return epoch, int(number)


def _record(sheet: Sheet) -> dict[str, Any]:
    return {"v": RECORD_VERSION, "tenants": {t: dict(counts) for t, counts in sheet.items()}}


def _sheet(record: Mapping[str, Any]) -> Sheet:
    return {tenant: _counts(told) for tenant, told in record["tenants"].items()}


def _counts(told: Mapping[str, Any]) -> Counts:
    """Fields that another release doesn't know are 0, those that this one doesn't are dropped."""
    return {name: told.get(name, 0) for name in FIELDS}
