"""The registry on Redis 7 or later: one server, or the master that Sentinels name.

What an answer means. `put` and `delete` answer once the master has the write and, where it has
replicas, one of them has it too (`replicas` in the URL asks for more, or none). If they don't say
so within `confirm_s`, the call raises Unavailable, code `registry_unconfirmed`: the write was made,
whoever reads sees it, and a failover may still lose it. Doing the same again is safe: it finds the
write made, and `confirm` waits for the replicas anew. An answered write is lost only with all
servers that have it, or with what they hadn't yet put on their disks if they stop at once
(`appendfsync`). After a loss `changes` is Gone and everybody lists again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import redis
from redis.exceptions import RedisError

from deployments.registry import redis_scripts as scripts
from deployments.registry.redis_blobs import grouped, read_entry, to_blob, written
from deployments.registry.redis_client import RETRY_AFTER_S, RedisClient, check_server, run
from deployments.registry.redis_url import RedisSettings
from deployments.registry.registry import Changes, Entry, Event, Gone, Listing, epoch_start
from deployments.registry.schema import SCHEMA, Schema
from engine.errors import Conflict, RegistryUnavailable

Reply = list[Any]
Work = Callable[[redis.Redis, bool], Reply]
"""As `RedisClient.call` takes it."""
PAGE = 500
"""Entries or events in one script's answer: bounds how long it holds up the server."""
STAGED_S = 3600
"""What an interrupted restore leaves behind ends after so long."""
MAX_ATTEMPTS = 3
UNCONFIRMED = "a failover may lose it. Do the same again to have it confirmed."


class RedisRegistry:
    """A `Registry`. Safe to use from several threads and processes.

    max_changes  revisions that the feed reaches back, at least
    clock        Unix seconds; only for `restore`, revisions are by the server's clock otherwise
    """

    single_host = False

    def __init__(
        self,
        settings: RedisSettings,
        *,
        max_changes: int = 10_000,
        schema: Schema = SCHEMA,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._max_changes = max_changes
        self._schema = schema
        self._clock = clock
        self._keys = tuple(f"{{{settings.prefix}}}:{name}" for name in scripts.KEYS)
        self._client = RedisClient(settings)
        try:
            self._client.call(lambda connection, _: check_server(connection, settings))
            self.list("", limit=1)
        except BaseException:
            self._client.close()
            raise

    def get(self, key: str) -> Entry | None:
        reply = self._read(scripts.GET, key)
        return None if reply[1] is None else read_entry(key, reply[1])

    def put(self, key: str, value: Mapping[str, Any], expected_rev: int | None) -> int:
        return self._write("put", key, written(value), expected_rev)

    def delete(self, key: str, expected_rev: int | None) -> int:
        return self._write("delete", key, "", expected_rev)

    def confirm(self) -> None:
        self._confirmed(lambda c, _: self._eval(c, scripts.CONFIRM, self._required))

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Listing:
        for _ in range(MAX_ATTEMPTS):
            listing = self._list(prefix, after, limit, self._read)
            if listing is not None:
                return listing
        raise self._unsteady()

    def changes(self, since: int) -> Changes | Gone:
        newest: dict[str, Event] = {}
        reached = False
        while not reached:
            reply = self._read(scripts.CHANGES, since, PAGE)
            if reply[0] == "gone":
                return Gone()
            for key, rev, blob in grouped(reply[2:], 3):
                found = None if blob is None else read_entry(key, blob)
                value = None if found is None else found.value
                newest[key] = Event(key, value, int(rev) if found is None else found.rev)
            reached, since = int(reply[1]) - since < PAGE, int(reply[1])
        return Changes(tuple(sorted(newest.values(), key=lambda event: event.rev)), since)

    def restore(self, values: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        rev: Any = self._client.call(lambda connection, _: connection.hget(self._keys[0], "rev"))
        start = epoch_start(int(rev or 0), self._clock())
        numbered = enumerate(values, start=1)
        blobs = ((key, to_blob(start + n, value)) for n, (key, value) in numbered)
        reply = self._switch(blobs, start, ())
        if reply[0] == "moved":
            raise self._unsteady()
        return int(reply[1])

    def check(self) -> None:
        """Also that entries, their order and the feed agree. While nobody writes."""
        state, entries, order, feed = self._client.call(self._everything)
        rev, epoch = int(state["rev"]), int(state["epoch"])
        assert sorted(entries, key=str.encode) == order, "order"
        assert all(0 < read_entry(key, it).rev <= rev for key, it in entries.items()), "revision"
        revs = [r for r in (int(at.split("-")[0]) for at, _ in feed) if r >= epoch]
        assert revs == list(range(rev - len(revs) + 1, rev + 1)), "the feed has a hole"

    def close(self) -> None:
        self._client.close()

    # Reading --------------------------------------------------------------------------------------
    def _read(self, script: str, *args: str | bytes | int) -> Reply:
        return self._run(lambda connection, _: self._eval(connection, script, *args))

    def _list(
        self, prefix: str, after: str, limit: int | None, read: Callable[..., Reply]
    ) -> Listing | None:
        """None: an epoch began between two pages."""
        entries: list[Entry] = []
        first: Reply = []
        # No byte of UTF-8 is 0xff.
        upper = b"(" + prefix.encode() + b"\xff" if prefix else b"+"
        while True:
            lower = f"({after}" if after and after.encode() >= prefix.encode() else f"[{prefix}"
            size = PAGE if limit is None else min(PAGE, limit - len(entries))
            reply = read(scripts.LIST, lower, upper, size)
            first = first or reply[:3]
            if reply[2] != first[2]:
                return None
            page = [read_entry(key, blob) for key, blob in grouped(reply[3:], 2)]
            entries += page
            if len(page) < size or len(entries) == limit:
                return Listing(tuple(entries), int(first[1]))
            after = page[-1].key

    def _everything(self, connection: redis.Redis, _: bool) -> Reply:
        state, entries, order, feed = self._keys
        pipe = connection.pipeline(transaction=False)
        pipe.hgetall(state)
        pipe.hgetall(entries)
        pipe.zrange(order, 0, -1)
        pipe.xrange(feed)
        return pipe.execute()

    # A write, whole or not at all -----------------------------------------------------------------
    def _write(self, verb: str, key: str, text: str, expected_rev: int | None) -> int:
        expected = "" if expected_rev is None else str(expected_rev)
        # By its token a second try finds the first in the feed, if that was executed after all.
        token = secrets.token_hex(8)

        def write(connection: redis.Redis, again: bool) -> Reply:
            args = (key, verb, text, expected, token, "retry" if again else "")
            return self._eval(connection, scripts.WRITE, *args, self._max_changes, self._required)

        reply = self._confirmed(write)
        if reply[0] == "conflict":
            raise Conflict(
                f"{key!r} is at revision {reply[1]}, not {expected_rev}. Read it and try again."
            )
        return int(reply[1])

    def _confirmed(self, write: Work) -> Reply:
        """Raises Unavailable unless as many replicas as must have the write."""

        def work(connection: redis.Redis, again: bool) -> Reply:
            reply = write(connection, again)
            if reply[0] == "ok":
                self._wait(connection, rev=reply[1], online=int(reply[2]))
            return reply

        return self._run(work)

    def _wait(self, connection: redis.Redis, *, rev: str, online: int) -> None:
        wanted = self._required if self._settings.replicas is not None else min(1, online)
        if not wanted:
            return
        try:
            have: Any = connection.wait(wanted, int(self._settings.confirm_s * 1000))
            told = f"{have} of {wanted} replicas have it after {self._settings.confirm_s:g} s"
        except (RedisError, OSError) as error:
            have, told = 0, f"the server was lost before a replica had it: {error}"
        if have < wanted:
            raise RegistryUnavailable(
                f"The registry at {self._settings.where} made this write, as revision {rev}, but"
                f" {told}: {UNCONFIRMED}",
                code="registry_unconfirmed",
                retry_after_s=RETRY_AFTER_S,
                public=f"The change was made, but not confirmed: {UNCONFIRMED}",
            )

    @property
    def _required(self) -> int:
        """Replicas that must be there before anything is written."""
        return self._settings.replicas or 0

    # The whole at once ----------------------------------------------------------------------------
    def _migrate(self, found: int) -> None:
        """One step of many processes' first: whoever is late finds it done."""
        self._schema.accept(found, self._settings.where)

        def read(script: str, *args: str | bytes | int) -> Reply:
            return self._client.call(lambda c, _: run(c, script, self._keys, found, *args))

        try:
            listing = self._list("", "", None, read)
        except IndexError:  # the schema changed meanwhile
            return
        if listing is not None:
            migrated = (
                (e.key, to_blob(e.rev, self._schema.migrated(e.key, e.value, found)))
                for e in listing.entries
            )
            self._switch(migrated, 0, (found, listing.rev))

    def _switch(self, blobs: Iterable[tuple[str, str]], start: int, began: Sequence[int]) -> Reply:
        """Stage `blobs`, then put them in the place of what is there. `start`: the revision before
        theirs. `began`: schema and revision that must be there still."""
        folder = f"{{{self._settings.prefix}}}:staged:{secrets.token_hex(8)}"
        staged = (f"{folder}:entries", f"{folder}:order")
        pages, size = iter(blobs), 0
        while page := dict(islice(pages, PAGE)):
            self._client.call(partial(_stage, staged, page))
            size += len(page)

        def switch(connection: redis.Redis, _: bool) -> Reply:
            keys = (*self._keys, *staged)
            return run(
                connection, scripts.SWITCH, keys, self._schema.version, size, start + size, *began
            )

        return self._confirmed(switch)

    # Scripts --------------------------------------------------------------------------------------
    def _eval(self, connection: redis.Redis, script: str, *args: str | bytes | int) -> Reply:
        return run(connection, script, self._keys, self._schema.version, *args)

    def _run(self, work: Work) -> Reply:
        """The answer of a script, once the registry has this release's schema."""
        for _ in range(MAX_ATTEMPTS):
            reply = self._client.call(work)
            match reply[0]:
                case "schema":
                    self._migrate(int(reply[1]))
                case "few":
                    raise RegistryUnavailable(
                        f"The registry at {self._settings.where} has {reply[1]} replicas, and a"
                        f" write needs {self._required}. Nothing was changed. See to the replicas.",
                        code="registry_unavailable",
                        retry_after_s=RETRY_AFTER_S,
                    )
                case "damaged":
                    raise RegistryUnavailable(
                        f"The registry at {self._settings.where} has lost its state beside its"
                        " entries. Restore a backup: loraplex registry restore.",
                        code="registry_damaged",
                    )
                case _:
                    return reply
        raise self._unsteady()

    def _unsteady(self) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"The registry at {self._settings.where} was changed as a whole meanwhile. Try again.",
            code="registry_unavailable",
            retry_after_s=RETRY_AFTER_S,
        )


def _stage(staged: tuple[str, str], page: dict[Any, Any], connection: redis.Redis, _: bool) -> None:
    entries, order = staged
    pipe = connection.pipeline(transaction=False)
    pipe.hset(entries, mapping=page)
    pipe.zadd(order, dict.fromkeys(page, 0))
    for key in staged:
        pipe.expire(key, STAGED_S)
    pipe.execute()
