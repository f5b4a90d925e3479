"""Removes from the object store what nobody can need any more, and nothing else.

What may go: objects of versions that no record names, or that have been retired for `grace_s`; and
uploads and half-written objects of that age. `grace_s` exceeds the longest request, so whoever
began with a version that is gone has ended. How old an orphan or an upload is, its sidecar says, or
else the store: since the last of its objects was put.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from deployments.changes.adapters import Adapters
from deployments.control.claims import Claims
from deployments.control.publish_order import UPLOADS
from deployments.control.sidecars import Sidecars
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import ADAPTERS, adapter_key
from deployments.registry.registry import Registry
from engine.adapters.store import MANIFEST, ObjectStore, Stored, object_prefix

logger = logging.getLogger(__name__)
VERSIONS = "adapters/"
ORPHAN, RETIRED, UPLOAD = "orphan", "retired", "upload"


@dataclass(frozen=True, slots=True)
class Removal:
    """A prefix of the store whose objects were removed (or would be), and why: orphan, retired or
    upload. num_bytes: of all its objects together."""

    prefix: str
    why: str
    num_bytes: int


YOUNG: Final = "young"
Judgement = Removal | Literal["young"] | None
"""None: it stays."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """kept_young: prefixes that may go later, once they are older than grace_s. unfinished:
    half-written objects that were removed (or would be). unreadable: records that can't be read; of
    their tenants nothing was removed."""

    removed: tuple[Removal, ...]
    kept_young: int
    unfinished: int
    unreadable: tuple[str, ...]
    dry_run: bool
    grace_s: float


class Sweep:
    """One for a service. Blocking. clock: Unix seconds. grace_s: see above."""

    def __init__(
        self,
        registry: Registry,
        store: ObjectStore,
        adapters: Adapters,
        claims: Claims,
        *,
        grace_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._store = store
        self._adapters = adapters
        self._claims = claims
        self._sidecars = Sidecars(store)
        self._grace_s = grace_s
        self._clock = clock

    def run(self, dry_run: bool = False) -> SweepReport:
        """Raises Unavailable where registry or store can't be reached: then nothing more goes.

        The store is listed before the registry, so that what is published meanwhile is known.
        """
        # What lies elsewhere below adapters/ isn't ours to judge.
        stored = (s for s in self._store.stored(VERSIONS) if s.key.count("/") > 2)
        versions, uploads = _by_prefix(stored), _by_prefix(self._store.stored(f"{UPLOADS}/"))
        records, unreadable = self._records()
        spared = {key.removeprefix(ADAPTERS).partition("/")[0] for key in unreadable}
        judged: list[Judgement] = [
            self._judge(prefix, objects, records.get(tenant, ()), dry_run)
            for prefix, objects in versions.items()
            if (tenant := prefix.split("/")[1]) not in spared
        ]
        for prefix, objects in uploads.items():
            is_old = self._is_old(_modified_s(objects))
            judged.append(self._remove(prefix, objects, UPLOAD, dry_run) if is_old else YOUNG)
        if not dry_run:
            self._forget(records)
        oldest_s = self._clock() - self._grace_s
        return SweepReport(
            tuple(found for found in judged if isinstance(found, Removal)),
            sum(found == YOUNG for found in judged),
            self._store.drop_unfinished(oldest_s, dry_run=dry_run),
            tuple(unreadable),
            dry_run,
            self._grace_s,
        )

    def _judge(
        self, prefix: str, objects: list[Stored], records: Sequence[AdapterRecord], dry_run: bool
    ) -> Judgement:
        """Of a version's objects. records: its tenant's."""
        digest = prefix.split("/")[2]
        why, since_s = _standing(records, digest)
        if why is None:
            return None
        if not self._is_old(self._stored_s(prefix, objects) if since_s is None else since_s):
            return YOUNG
        names = {r.name for r in records if _standing([r], digest)[1]}
        return self._remove_version(prefix, objects, names, dry_run)

    def _records(self) -> tuple[dict[str, list[AdapterRecord]], list[str]]:
        """By tenant; and the keys of those that can't be read."""
        found: dict[str, list[AdapterRecord]] = {}
        unreadable = []
        for entry in self._registry.list(ADAPTERS).entries:
            try:
                record = AdapterRecord.from_value(entry.value)
            except (ValueError, KeyError, TypeError):
                logger.exception("record %s can't be read: its tenant isn't swept", entry.key)
                unreadable.append(entry.key)
                continue
            found.setdefault(record.tenant, []).append(record)
        return found, unreadable

    def _remove_version(
        self, prefix: str, objects: list[Stored], names: set[str], dry_run: bool
    ) -> Removal | None:
        """Nobody publishes it meanwhile; who did since the registry was read, keeps it.

        names  of the records that knew its digest
        """
        tenant, digest = prefix.split("/")[1:]
        with self._claims.of(prefix):
            names = names | {s.version.ref.name for s in self._sidecars.of(prefix)}
            records = [r for n in names if (r := self._current(tenant, n)) is not None]
            why, since_s = _standing(records, digest)
            if why is None or not self._is_old(
                self._stored_s(prefix, objects) if since_s is None else since_s
            ):
                return None
            return self._remove(prefix, objects, why, dry_run)

    def _remove(self, prefix: str, objects: list[Stored], why: str, dry_run: bool) -> Removal:
        """The manifest first: what has lost it is no version any more."""
        num_bytes = sum(stored.num_bytes for stored in objects)
        if not dry_run:
            for stored in sorted(objects, key=lambda s: not s.key.endswith(f"/{MANIFEST}")):
                self._store.delete(stored.key)
            logger.info("swept %s (%s, %d bytes)", prefix, why, num_bytes)
        return Removal(prefix, why, num_bytes)

    def _forget(self, records: dict[str, list[AdapterRecord]]) -> None:
        """Of condemned versions whose objects are gone, or another name's."""
        for of_tenant in records.values():
            for record in of_tenant:
                old = [c.digest for c in record.condemned if self._is_old(c.retired_s)]
                gone = [
                    digest
                    for digest in old
                    if _standing(of_tenant, digest)[0] is None
                    or not self._store.list(f"{object_prefix(record.tenant, digest)}/")
                ]
                if gone:
                    self._adapters.swept(record.tenant, record.name, gone)

    def _current(self, tenant: str, name: str) -> AdapterRecord | None:
        entry = self._registry.get(adapter_key(tenant, name))
        return None if entry is None else AdapterRecord.from_value(entry.value)

    def _stored_s(self, prefix: str, objects: list[Stored]) -> float:
        """When an orphan's bytes were put. A sidecar that says so counts alone: it is written ahead
        of them, by the clock that `grace_s` is measured on."""
        times = [sidecar.stored_s for sidecar in self._sidecars.of(prefix)]
        return max(times) if times else _modified_s(objects)

    def _is_old(self, since_s: float) -> bool:
        return self._clock() - since_s >= self._grace_s


def _standing(records: Iterable[AdapterRecord], digest: str) -> tuple[str | None, float | None]:
    """(why its objects may go, since when): (None, None) while some record needs them; of an orphan
    the records don't know since when."""
    retired_s: list[float] = []
    for record in records:
        version = record.version(digest)
        if version is not None and version.retired_s is None:
            return None, None
        if version is not None and version.retired_s is not None:
            retired_s.append(version.retired_s)
        retired_s += [c.retired_s for c in record.condemned if c.digest == digest]
    return (RETIRED, max(retired_s)) if retired_s else (ORPHAN, None)


def _by_prefix(objects: Iterable[Stored]) -> dict[str, list[Stored]]:
    """By the first three segments of their keys."""
    found: dict[str, list[Stored]] = {}
    for stored in objects:
        found.setdefault("/".join(stored.key.split("/")[:3]), []).append(stored)
    return found


def _modified_s(objects: Iterable[Stored]) -> float:
    """When the last of them was put."""
    return max(stored.modified_s for stored in objects)
