"""Removes from the object store what nobody can need any more, and nothing else.

What may go: objects of versions that no record names, or that have been retired for `grace_s`; and
uploads and half-written objects of that age. `grace_s` exceeds the longest request, so whoever
began with a version that is gone has ended. A version without a sidecar (an earlier release's, or a
half-written one's) tells no age: it goes when it is found for the second time, `grace_s` later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deployments.adapters import Adapters
from deployments.claims import Claims
from deployments.orders import UPLOADS
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import ADAPTERS, adapter_key
from deployments.registry.registry import Registry
from deployments.sidecars import Sidecars
from engine.adapters.store import MANIFEST, ObjectStore, object_prefix

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


@dataclass(frozen=True, slots=True)
class SweepReport:
    """kept_young: prefixes that may go later. unfinished: half-written objects that were removed.
    unreadable: records that can't be read; of their tenants nothing was removed."""

    removed: tuple[Removal, ...]
    kept_young: int
    unfinished: int
    unreadable: tuple[str, ...]
    dry_run: bool


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
        self._first_seen: dict[str, float] = {}

    def run(self, dry_run: bool = False) -> SweepReport:
        """Raises Unavailable where registry or store can't be reached: then nothing more goes.

        The store is listed before the registry, so that what is published meanwhile is known.
        """
        objects = _by_version(self._store.list(VERSIONS))
        uploads = _by_version(self._store.list(f"{UPLOADS}/"))
        records, unreadable = self._records()
        spared = {key.removeprefix(ADAPTERS).partition("/")[0] for key in unreadable}
        removed: list[Removal] = []
        num_young = 0
        unknown = set()
        for prefix, keys in objects.items():
            tenant, digest = prefix.split("/")[1:]
            if tenant in spared:
                continue
            why, since_s = _standing(records.get(tenant, ()), digest)
            if why is None:
                continue
            if since_s is None:
                since_s = self._stored_s(prefix)
                unknown.add(prefix)
            if not self._is_old(since_s):
                num_young += 1
                continue
            names = {r.name for r in records.get(tenant, ()) if _standing([r], digest)[1]}
            if (gone := self._remove_version(prefix, keys, names, dry_run)) is not None:
                removed.append(gone)
        for prefix, keys in uploads.items():
            if not self._is_old(_upload_s(prefix)):
                num_young += 1
            else:
                removed.append(self._remove(prefix, keys, UPLOAD, dry_run))
        self._first_seen = {p: s for p, s in self._first_seen.items() if p in unknown}
        if not dry_run:
            self._forget(records)
        unfinished = 0 if dry_run else self._store.drop_unfinished(self._clock() - self._grace_s)
        return SweepReport(tuple(removed), num_young, unfinished, tuple(unreadable), dry_run)

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
        self, prefix: str, keys: list[str], names: set[str], dry_run: bool
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
                self._stored_s(prefix) if since_s is None else since_s
            ):
                return None
            return self._remove(prefix, keys, why, dry_run)

    def _remove(self, prefix: str, keys: list[str], why: str, dry_run: bool) -> Removal:
        """The manifest first: what has lost it is no version any more."""
        num_bytes = sum(self._store.size(key) or 0 for key in keys)
        if not dry_run:
            for key in sorted(keys, key=lambda k: not k.endswith(f"/{MANIFEST}")):
                self._store.delete(key)
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

    def _stored_s(self, prefix: str) -> float:
        """When an orphan's bytes were put, or else when it was first seen."""
        times = [sidecar.stored_s for sidecar in self._sidecars.of(prefix)]
        return max(times) if times else self._first_seen.setdefault(prefix, self._clock())

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


def _by_version(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys by their first three segments. What lies elsewhere isn't ours to judge."""
    found: dict[str, list[str]] = {}
    for key in keys:
        segments = key.split("/")
        if len(segments) > 3:
            found.setdefault("/".join(segments[:3]), []).append(key)
    return found


def _upload_s(prefix: str) -> float:
    """When an upload began, by its name; one of another name is as old as can be."""
    began = prefix.rsplit("/", 1)[1].partition("-")[0]
    return float(began) if began.isdigit() else 0.0
