"""The embedded registry: one SQLite file in WAL mode, shared by the processes of one host.

A deleted key stays as a row without a value, so that the feed of changes is one indexed query. Of
those rows the newest `max_tombstones` are kept; `trimmed` says up to where the feed has holes, and
`epoch` where the revisions that still mean anything begin.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from deployments.registry.registry import Changes, Entry, Event, Gone, Listing, epoch_start
from deployments.registry.schema import SCHEMA, Schema
from engine.errors import Conflict, RegistryUnavailable

T = TypeVar("T")

LAYOUT = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT, rev INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE UNIQUE INDEX entries_by_rev ON entries (rev)",
    "CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), rev INTEGER, trimmed INTEGER,"
    " epoch INTEGER NOT NULL DEFAULT 0)",
)
LAYOUT_STEPS = {1: ("ALTER TABLE state ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",)}
"""By the schema version that they start from."""
LAST = "\U0010ffff"
"""Sorts behind every key that begins with a prefix."""


class SqliteRegistry:
    """A `Registry` in the file `path`. Safe to use from several threads and processes.

    busy_timeout_s  how long a write waits for another process's before it is Unavailable
    clock           Unix seconds
    """

    single_host = True

    def __init__(
        self,
        path: str | Path,
        *,
        max_tombstones: int = 10_000,
        busy_timeout_s: float = 5.0,
        schema: Schema = SCHEMA,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path)
        self._schema = schema
        self._clock = clock
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
        text = _text(value)
        return self._write(lambda db: self._set(db, key, text, expected_rev))

    def delete(self, key: str, expected_rev: int | None) -> int:
        return self._write(lambda db: self._set(db, key, None, expected_rev))

    def confirm(self) -> None:
        """Every write is on the disk before it is answered."""

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Listing:
        # One lower bound: of two, SQLite would seek to the first and read up to the second.
        behind = after.encode() >= prefix.encode() and after != ""

        def read(db: sqlite3.Connection) -> Listing:
            rows = db.execute(
                f"SELECT key, value, rev FROM entries WHERE key {'>' if behind else '>='} ?"
                " AND key < ? AND value IS NOT NULL ORDER BY key LIMIT ?",
                (after if behind else prefix, prefix + LAST, -1 if limit is None else limit),
            ).fetchall()
            entries = tuple(Entry(key, json.loads(value), rev) for key, value, rev in rows)
            return Listing(entries, _state(db).rev)

        return self._read(read)

    def changes(self, since: int) -> Changes | Gone:
        def read(db: sqlite3.Connection) -> Changes | Gone:
            state = _state(db)
            if not max(state.trimmed, state.epoch) <= since <= state.rev:
                return Gone()
            rows = db.execute(
                "SELECT key, value, rev FROM entries WHERE rev > ? ORDER BY rev", (since,)
            ).fetchall()
            events = (Event(k, None if v is None else json.loads(v), r) for k, v, r in rows)
            return Changes(tuple(events), state.rev)

        return self._read(read)

    def restore(self, values: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        def write(db: sqlite3.Connection) -> int:
            start = rev = epoch_start(_state(db).rev, self._clock())
            db.execute("DELETE FROM entries")
            for key, value in values:
                rev += 1
                db.execute("INSERT INTO entries VALUES (?, ?, ?)", (key, _text(value), rev))
            db.execute("UPDATE state SET rev = ?, epoch = ?, trimmed = ?", (rev, rev, start))
            return rev

        return self._write(write)

    def close(self) -> None:
        with self._reading, self._writing:
            self._reader.close()
            self._writer.close()

    def check(self) -> None:
        """Assert what every write keeps: revisions within bounds, tombstones within theirs."""

        def read(db: sqlite3.Connection) -> None:
            state = _state(db)
            rev, trimmed = state.rev, state.trimmed
            assert 0 <= trimmed <= rev and 0 <= state.epoch <= rev, state
            highest = db.execute("SELECT coalesce(max(rev), 0) FROM entries").fetchone()[0]
            assert highest <= rev, (highest, rev)
            dead, oldest = db.execute(
                "SELECT count(*), min(rev) FROM entries WHERE value IS NULL"
            ).fetchone()
            assert dead <= self._max_tombstones, dead
            assert oldest is None or oldest > trimmed, (oldest, trimmed)

        self._read(read)

    # A write, whole or not at all -----------------------------------------------------------------
    def _set(
        self, db: sqlite3.Connection, key: str, text: str | None, expected_rev: int | None
    ) -> int:
        row = db.execute("SELECT rev, value FROM entries WHERE key = ?", (key,)).fetchone()
        found = 0 if row is None or row[1] is None else int(row[0])
        if expected_rev is not None and expected_rev != found:
            raise Conflict(
                f"{key!r} is at revision {found}, not {expected_rev}. Read it and try again."
            )
        rev = _state(db).rev
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
            self._check_version(db)
            return read(db)

    def _write(self, write: Callable[[sqlite3.Connection], T]) -> T:
        with self._errors(), self._writing, _transaction(self._writer, "IMMEDIATE") as db:
            self._check_version(db)
            return write(db)

    def _check_version(self, db: sqlite3.Connection) -> None:
        """A later release may have migrated the file while this one has it open."""
        found = _version(db)
        if found != self._schema.version:
            self._schema.accept(found, str(self._path))

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
                if _version(db) != self._schema.version:
                    with _transaction(db, "IMMEDIATE"):
                        self._bring_up(db)
            except BaseException:
                db.close()
                raise
            return db

    def _bring_up(self, db: sqlite3.Connection) -> None:
        """Make the tables, or migrate what an earlier release left."""
        schema, found = self._schema, _version(db)
        if found == 0:
            for statement in LAYOUT:
                db.execute(statement)
            start = epoch_start(0, self._clock())
            db.execute("INSERT INTO state VALUES (0, ?, 0, ?)", (start, start))
        else:
            schema.accept(found, str(self._path))
            for version in range(found, schema.version):
                for statement in LAYOUT_STEPS.get(version, ()):
                    db.execute(statement)
            rows = db.execute("SELECT key, value FROM entries WHERE value IS NOT NULL").fetchall()
            for key, text in rows:
                migrated = _text(schema.migrated(key, json.loads(text), found))
                if migrated != text:
                    db.execute("UPDATE entries SET value = ? WHERE key = ?", (migrated, key))
        db.execute(f"PRAGMA user_version = {schema.version}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RegistryUnavailable(
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


class _State(NamedTuple):
    rev: int
    trimmed: int
    epoch: int


def _state(db: sqlite3.Connection) -> _State:
    return _State(*db.execute("SELECT rev, trimmed, epoch FROM state").fetchone())


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
