"""The embedded registry: one SQLite file in WAL mode, shared by the processes of one host.

A deleted key stays as a row without a value, so that the feed of changes is one indexed query. Of
those rows the newest `max_tombstones` are kept; `trimmed` says up to where the feed has holes.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from deployments.registry.registry import Changes, Entry, Event, Gone, Listing
from engine.errors import Conflict, Unavailable

T = TypeVar("T")

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT, rev INTEGER NOT NULL) WITHOUT ROWID;
CREATE UNIQUE INDEX entries_by_rev ON entries (rev);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), rev INTEGER, trimmed INTEGER);
INSERT INTO state VALUES (0, 0, 0);
"""
LAST = "\U0010ffff"
"""Sorts behind every key that begins with a prefix."""


class SqliteRegistry:
    """A `Registry` in the file `path`. Safe to use from several threads and processes.

    busy_timeout_s  how long a write waits for another process's before it is Unavailable
    """

    single_host = True

    def __init__(
        self, path: str | Path, *, max_tombstones: int = 10_000, busy_timeout_s: float = 5.0
    ) -> None:
        self._path = Path(path)
        self._max_tombstones = max_tombstones
        # Two connections: a write that waits for another process holds up no read.
        self._reading, self._writing = threading.Lock(), threading.Lock()
        with self._errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._reader = self._connect(busy_timeout_s)
            try:
                self._writer = self._connect(busy_timeout_s)
            except BaseException:
                self._reader.close()
                raise

    def get(self, key: str) -> Entry | None:
        def read(db: sqlite3.Connection) -> Entry | None:
            row = db.execute(
                "SELECT key, value, rev FROM entries WHERE key = ? AND value IS NOT NULL", (key,)
            ).fetchone()
            return None if row is None else Entry(row[0], json.loads(row[1]), row[2])

        return self._read(read)

    def put(self, key: str, value: Mapping[str, Any], expected_rev: int | None) -> int:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        return self._write(key, text, expected_rev)

    def delete(self, key: str, expected_rev: int | None) -> int:
        return self._write(key, None, expected_rev)

    def list(self, prefix: str) -> Listing:
        def read(db: sqlite3.Connection) -> Listing:
            rows = db.execute(
                "SELECT key, value, rev FROM entries"
                " WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key",
                (prefix, prefix + LAST),
            ).fetchall()
            entries = tuple(Entry(key, json.loads(value), rev) for key, value, rev in rows)
            return Listing(entries, _state(db)[0])

        return self._read(read)

    def changes(self, since: int) -> Changes | Gone:
        def read(db: sqlite3.Connection) -> Changes | Gone:
            rev, trimmed = _state(db)
            if not trimmed <= since <= rev:
                return Gone()
            rows = db.execute(
                "SELECT key, value, rev FROM entries WHERE rev > ? ORDER BY rev", (since,)
            ).fetchall()
            return Changes(
                tuple(Event(k, None if v is None else json.loads(v), r) for k, v, r in rows), rev
            )

        return self._read(read)

    def close(self) -> None:
        with self._reading, self._writing:
            self._reader.close()
            self._writer.close()

    def check(self) -> None:
        """Assert what every write keeps: revisions within bounds, tombstones within theirs."""

        def read(db: sqlite3.Connection) -> None:
            rev, trimmed = _state(db)
            assert 0 <= trimmed <= rev, (trimmed, rev)
            highest = db.execute("SELECT coalesce(max(rev), 0) FROM entries").fetchone()[0]
            assert highest <= rev, (highest, rev)
            dead, oldest = db.execute(
                "SELECT count(*), min(rev) FROM entries WHERE value IS NULL"
            ).fetchone()
            assert dead <= self._max_tombstones, dead
            assert oldest is None or oldest > trimmed, (oldest, trimmed)

        self._read(read)

    # A write, whole or not at all -----------------------------------------------------------------
    def _write(self, key: str, text: str | None, expected_rev: int | None) -> int:
        with self._errors(), self._writing, _transaction(self._writer, "IMMEDIATE") as db:
            row = db.execute("SELECT rev, value FROM entries WHERE key = ?", (key,)).fetchone()
            found = 0 if row is None or row[1] is None else int(row[0])
            if expected_rev is not None and expected_rev != found:
                raise Conflict(
                    f"{key!r} is at revision {found}, not {expected_rev}. Read it and try again."
                )
            rev = _state(db)[0]
            if text is None and found == 0:
                return rev
            rev += 1
            db.execute(
                "INSERT INTO entries VALUES (?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value, rev = excluded.rev",
                (key, text, rev),
            )
            db.execute("UPDATE state SET rev = ?", (rev,))
            if text is None:
                self._trim(db)
            return rev

    def _trim(self, db: sqlite3.Connection) -> None:
        last = db.execute(
            "SELECT rev FROM entries WHERE value IS NULL ORDER BY rev DESC LIMIT 1 OFFSET ?",
            (self._max_tombstones,),
        ).fetchone()
        if last is not None:
            db.execute("DELETE FROM entries WHERE value IS NULL AND rev <= ?", last)
            db.execute("UPDATE state SET trimmed = ?", last)

    # Connections ----------------------------------------------------------------------------------
    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """`read` sees one moment of the registry."""
        with self._errors(), self._reading, _transaction(self._reader, "DEFERRED") as db:
            return read(db)

    def _connect(self, busy_timeout_s: float) -> sqlite3.Connection:
        # Turning WAL on fails at once while another process does the same; a file lock orders them.
        with open(f"{self._path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            db = sqlite3.connect(
                self._path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version == 0:
                    db.executescript(
                        f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                    )
                elif version != SCHEMA_VERSION:
                    raise Unavailable(
                        f"The registry at {self._path} has schema {version}; this release reads"
                        f" {SCHEMA_VERSION}. Use the release that wrote it, or another file."
                    )
            except BaseException:
                db.close()
                raise
            return db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(
                f"The registry at {self._path} can't be used: {error}. Check the file, its folder"
                " and the space left on its disk.",
                code="registry_unavailable",
            ) from error


@contextmanager
def _transaction(db: sqlite3.Connection, kind: str) -> Iterator[sqlite3.Connection]:
    db.execute(f"BEGIN {kind}")
    try:
        yield db
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _state(db: sqlite3.Connection) -> tuple[int, int]:
    rev, trimmed = db.execute("SELECT rev, trimmed FROM state").fetchone()
    return int(rev), int(trimmed)
