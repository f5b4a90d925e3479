"""Registries of other releases: older ones are brought up in one step, newer ones refused."""

from __future__ import annotations

import secrets
import sqlite3
import threading

import pytest

from deployments.registry.redis_registry import RedisRegistry
from deployments.registry.redis_url import RedisSettings
from deployments.registry.registry import ABSENT, Gone
from deployments.registry.schema import SCHEMA, Schema
from deployments.registry.sqlite import SqliteRegistry
from engine.errors import Unavailable


def renamed(key, value):
    """n is called number from version 3 on."""
    return {"number" if k == "n" else k: v for k, v in value.items()}


def marked(key, value):
    return {**value, "key": key} if key.startswith("a/") else value


TWO = Schema(2, {})
FOUR = Schema(4, {2: renamed, 3: marked})
THREE = Schema(3, {2: renamed})
FIVE_FROM_FOUR = Schema(5, {4: marked})


@pytest.fixture(params=["sqlite", "redis"])
def open_as(request, tmp_path):
    """Opens one registry as the release with that schema does."""
    opened = []
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        url = RedisSettings.parse(f"{server.url}?prefix=m{secrets.token_hex(4)}")

    def open_it(schema):
        if request.param == "sqlite":
            opened.append(SqliteRegistry(tmp_path / "registry.db", schema=schema))
        else:
            opened.append(RedisRegistry(url, schema=schema))
        return opened[-1]

    yield open_it
    for registry in opened:
        registry.close()


def test_steps_follow_one_another(open_as):
    old = open_as(TWO)
    revs = {k: old.put(k, {"n": i}, ABSENT) for i, k in enumerate(("a/x", "a/y", "b"))}
    old.delete("a/y", None)
    new = open_as(FOUR)
    assert [(e.key, e.value) for e in new.list("").entries] == [
        ("a/x", {"number": 0, "key": "a/x"}),
        ("b", {"number": 2}),
    ]
    assert new.get("b").rev == revs["b"]
    assert new.put("b", {"number": 3}, revs["b"]) > revs["b"]
    new.check()


def test_a_release_that_is_overtaken_stops_reading_and_writing(open_as):
    old = open_as(TWO)
    rev = old.put("a/x", {"n": 1}, ABSENT)
    open_as(FOUR)
    for call in (
        lambda: old.get("a/x"),
        lambda: old.put("a/x", {"n": 2}, rev),
        lambda: old.delete("a/x", rev),
        lambda: old.list(""),
        lambda: old.changes(rev),
        lambda: open_as(TWO),
    ):
        with pytest.raises(Unavailable, match="has schema 4; this release reads 2 to 2") as told:
            call()
        assert told.value.code == "registry_schema" and "later one" in told.value.message


def test_a_registry_too_old_is_refused(open_as):
    open_as(TWO).put("a/x", {"n": 1}, ABSENT)
    with pytest.raises(Unavailable, match="has schema 2; .* 4 to 5. Migrate it with an earlier"):
        open_as(FIVE_FROM_FOUR)
    assert open_as(TWO).get("a/x").value == {"n": 1}


def test_a_step_that_fails_changes_nothing(open_as):
    old = open_as(TWO)
    for n in range(3):
        old.put(f"k{n}", {"n": n}, ABSENT)
    before = old.list("")

    def fails_at_the_last(key, value):
        if key == "k2":
            raise KeyError(key)
        return {}

    with pytest.raises(KeyError):
        open_as(Schema(3, {2: fails_at_the_last}))
    assert old.list("") == before
    assert [e.value for e in open_as(THREE).list("").entries] == [{"number": n} for n in range(3)]


def test_many_processes_that_start_at_once_migrate_once(open_as):
    old = open_as(TWO)
    for n in range(30):
        old.put(f"k{n}", {"n": n}, ABSENT)
    found = []

    def start():
        found.append([e.value for e in open_as(FOUR).list("").entries])

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 and all(values == found[0] for values in found)
    assert sorted(v["number"] for v in found[0]) == list(range(30))


def test_redis_clients_list_again_after_a_migration(redis_server):
    url = RedisSettings.parse(f"{redis_server.url}?prefix=m{secrets.token_hex(4)}")
    old = RedisRegistry(url, schema=TWO)
    rev = old.put("b", {"n": 1}, ABSENT)
    new = RedisRegistry(url, schema=THREE)
    assert new.changes(rev) == Gone()
    assert not list(redis_server.client().scan_iter(f"{{{url.prefix}}}:staged:*"))
    new.check()
    old.close()
    new.close()


FIRST_RELEASE = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT, rev INTEGER NOT NULL) WITHOUT ROWID;
CREATE UNIQUE INDEX entries_by_rev ON entries (rev);
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), rev INTEGER, trimmed INTEGER);
INSERT INTO state VALUES (0, 4, 1);
INSERT INTO entries VALUES
  ('adapter/acme/bot', '{"v":1,"tenant":"acme","name":"bot","current":null,"versions":[]}', 4),
  ('tenant/acme', '{"v":1,"id":"acme"}', 2),
  ('tenant/gone', NULL, 3);
PRAGMA user_version = 1;
"""


def test_a_file_of_the_first_release(tmp_path):
    """Its adapters had no aliases, its revisions no epochs: they go on."""
    path = tmp_path / "registry.db"
    with sqlite3.connect(path) as db:
        db.executescript(FIRST_RELEASE)
    db.close()
    registry = SqliteRegistry(path)
    adapter = registry.get("adapter/acme/bot")
    assert (adapter.rev, adapter.value["v"], adapter.value["aliases"]) == (4, 2, {})
    assert registry.get("tenant/acme").value == {"v": 1, "id": "acme"}
    assert [e.key for e in registry.changes(2).events] == ["tenant/gone", "adapter/acme/bot"]
    assert registry.changes(0) == Gone()
    assert registry.put("tenant/b", {}, ABSENT) == 5
    registry.check()
    registry.close()


def test_this_release_has_every_step():
    assert sorted(SCHEMA.steps) == list(range(1, SCHEMA.version))
