"""The registry's interface: a small key-value store with revisions and a feed of changes.

Every write gets the next revision of the whole registry. Values are JSON objects. Calls may block
on a disk or a network, so an event loop makes them from a thread.

A registry that may have lost writes (a failover, a restored backup, emptied) begins a new epoch:
its revisions go on from `epoch_start`, above all that were given out before, so that the revision
of a lost write never stands for another one; and `changes` from before is Gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

ABSENT = 0
"""As `expected_rev`: the key must not exist."""


REVISIONS_PER_MS = 2048
"""More writes than a backend can take in a millisecond; fits 53 bits until the year 2109."""


def epoch_start(rev: int, now_s: float) -> int:
    """The first revision of an epoch that begins at Unix time `now_s`, after revision `rev`."""
    return max(rev + 1, int(now_s * 1000) * REVISIONS_PER_MS)


@dataclass(frozen=True, slots=True)
class Entry:
    """A value under a key. `rev` is the revision of its last write, > 0."""

    key: str
    value: Mapping[str, Any]
    rev: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries under a prefix, by key (bytes of UTF-8). Feed `rev` to `changes` to go on from here;
    an entry may be newer than that already."""

    entries: tuple[Entry, ...]
    rev: int


@dataclass(frozen=True, slots=True)
class Event:
    """The newest state of one key. `value` is None where it was deleted."""

    key: str
    value: Mapping[str, Any] | None
    rev: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Every key written after the revision asked for, once, by revision."""

    events: tuple[Event, ...]
    rev: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The feed no longer reaches back so far, or the registry is another one: list again."""


class Registry(Protocol):
    """One conformance suite holds every backend to this.

    single_host  only processes of one machine can share it

    Every call raises Unavailable when the backend can't be reached, is full or damaged, or holds
    what another release wrote. A write that raised it may have been made all the same: its message
    says which is known. Reading again, then writing on, is always safe.
    """

    single_host: bool

    def get(self, key: str) -> Entry | None: ...

    def put(self, key: str, value: Mapping[str, Any], expected_rev: int | None) -> int:
        """Write and answer the new revision.

        Raises Conflict, having changed nothing, unless the key's revision is `expected_rev`
        (`ABSENT`: no such key; None: whatever is there).
        """
        ...

    def delete(self, key: str, expected_rev: int | None) -> int:
        """Remove a key and answer the revision of that. Raises Conflict as `put` does; with None,
        a key that isn't there is no error."""
        ...

    def confirm(self) -> None:
        """Return once what was written so far, by anybody, is as safe as an answered `put`: who
        finds a write made that somebody was told is unconfirmed asks this before saying so."""
        ...

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Listing:
        """The first `limit` entries (None: all) under `prefix` whose key sorts behind `after`.

        Pages are of different moments. `changes` from the first page's revision brings whoever read
        them one by one up to date, or is Gone.
        """
        ...

    def changes(self, since: int) -> Changes | Gone: ...

    def restore(self, values: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        """Put `values`, by distinct keys, in the place of all that is there, in one step; answers
        the revision. Revisions from before no longer hold for any `put`."""
        ...

    def check(self) -> None:
        """Assert what every write keeps. Reads everything."""
        ...

    def close(self) -> None: ...
