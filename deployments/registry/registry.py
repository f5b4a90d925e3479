"""The registry's interface: a small key-value store with revisions and a feed of changes.

Every write gets the next revision of the whole registry. Values are JSON objects. Calls may block
on a disk or a network, so an event loop makes them from a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

ABSENT = 0
"""As `expected_rev`: the key must not exist."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value under a key. `rev` is the revision of its last write, > 0."""

    key: str
    value: Mapping[str, Any]
    rev: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries under a prefix, by key. Feed `rev` to `changes` to go on from here."""

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

    Every call raises Unavailable when the backend can't be reached or is damaged.
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

    def list(self, prefix: str) -> Listing: ...

    def changes(self, since: int) -> Changes | Gone: ...

    def close(self) -> None: ...
