"""A Redis that is down, slow, full, emptied or replaced: what is said, and how it passes."""

from __future__ import annotations

import threading

import pytest

from deployments.registry import open_registry
from deployments.registry.redis_registry import RedisRegistry
from deployments.registry.redis_url import RedisSettings
from deployments.registry.registry import ABSENT, Changes, Gone
from engine.errors import Conflict, Unavailable
from tests.support.proxies import Proxy
from tests.support.redis_servers import is_online, replicated, server, until


def unavailable(code: str, says: str | None = None):
    """A test's `pytest.raises` for Unavailable with a remedy."""
    return pytest.raises(Unavailable, match=says, check=lambda e: e.code == code)


@pytest.fixture
def redis_alone(tmp_path):
    """A server that this test may break. What it holds outlives it, by an append-only file."""
    with server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as one:
        yield one


@pytest.fixture
def registry(redis_alone):
    registry = open_registry(redis_alone.url)
    yield registry
    registry.close()


def test_a_killed_server_is_unavailable_and_comes_back(redis_alone, registry):
    rev = registry.put("a", {"n": 1}, ABSENT)
    redis_alone.kill()
    for call in (
        lambda: registry.get("a"),
        lambda: registry.put("a", {"n": 2}, rev),
        lambda: registry.changes(rev),
    ):
        with unavailable("registry_unavailable", "See that it runs"):
            call()
    redis_alone.start()
    assert registry.get("a").value == {"n": 1}
    # A server that starts anew may have lost writes: only listing tells.
    assert registry.changes(rev) == Gone()
    start = registry.list("").rev
    assert start > rev
    assert registry.put("a", {"n": 3}, rev) == start + 1
    assert [e.value for e in registry.changes(start).events] == [{"n": 3}]
    registry.check()


def test_a_broken_connection_is_replaced_within_the_call(redis_alone, registry):
    registry.put("a", {"n": 1}, ABSENT)
    redis_alone.client().client_kill_filter(_type="normal", skipme=True)
    assert registry.put("a", {"n": 2}, None) > 0
    redis_alone.client().client_kill_filter(_type="normal", skipme=True)
    assert registry.get("a").value == {"n": 2}


def test_a_write_tried_twice_is_made_once(redis_alone):
    """The connection breaks after the server wrote and before its answer arrived."""
    with Proxy(redis_alone.port) as proxy:
        registry = open_registry(f"redis://127.0.0.1:{proxy.port}")
        first = registry.put("a", {"n": 1}, ABSENT)
        proxy.cut_answers = 1
        assert registry.put("a", {"n": 2}, first) == first + 1
        proxy.cut_answers = 1
        assert registry.delete("a", first + 1) == first + 2
        assert proxy.cut_answers == 0
        assert registry.get("a") is None and registry.list("").rev == first + 2
        proxy.cut_answers = 2
        with unavailable("registry_unavailable"):
            registry.put("a", {"n": 3}, ABSENT)
        registry.check()
        registry.close()


def test_a_frozen_server_is_slow_and_comes_back(redis_alone, registry):
    rev = registry.put("a", {"n": 1}, ABSENT)
    impatient = open_registry(f"{redis_alone.url}?timeout_s=0.5&confirm_s=0.5")
    redis_alone.freeze()
    with unavailable("registry_slow", "may have been made"):
        impatient.put("a", {"n": 2}, rev)
    with unavailable("registry_slow"):
        impatient.get("a")
    redis_alone.thaw()
    impatient.close()
    until(lambda: registry.get("a").rev in (rev, rev + 1))
    until(lambda: registry.get("a").value == {"n": 2})  # it had been sent
    with pytest.raises(Conflict):
        registry.put("a", {"n": 3}, rev)
    assert [e.value for e in registry.changes(rev).events] == [{"n": 2}]


def test_a_full_server_takes_no_new_entry_and_serves_on(redis_alone, registry):
    rev = registry.put("a", {"n": 1}, ABSENT)
    operator = redis_alone.client()
    operator.config_set("maxmemory", 1)
    with unavailable("registry_full", "raise maxmemory"):
        registry.put("b", {"n": 2}, ABSENT)
    assert registry.get("a").rev == rev
    assert registry.changes(rev) == Changes((), rev)
    assert registry.list("").rev == rev
    assert registry.delete("a", rev) == rev + 1  # what frees memory is taken
    registry.check()
    operator.config_set("maxmemory", 0)
    assert registry.put("b", {"n": 2}, ABSENT) == rev + 2


def test_a_full_server_that_starts_anew_is_listed_again(redis_alone, registry):
    rev = registry.put("a", {"n": 1}, ABSENT)
    redis_alone.kill()
    redis_alone.options += ("--maxmemory", "1")
    redis_alone.start()
    assert registry.changes(rev) == Gone()
    assert [e.key for e in registry.list("").entries] == ["a"]


def test_an_emptied_server_is_another_registry(redis_alone, registry):
    rev = registry.put("a", {"n": 1}, ABSENT)
    redis_alone.client().flushall()
    assert registry.get("a") is None
    assert registry.changes(rev) == Gone()
    with pytest.raises(Conflict):
        registry.put("a", {"n": 2}, rev)
    assert registry.list("").entries == ()
    assert registry.put("a", {"n": 2}, ABSENT) > rev
    registry.check()


def test_state_lost_beside_its_entries_is_damage(redis_alone, registry):
    registry.put("a", {"n": 1}, ABSENT)
    redis_alone.client().delete("{loraplex}:state")
    for call in (lambda: registry.list(""), lambda: registry.put("b", {}, ABSENT)):
        with unavailable("registry_damaged", "loraplex registry restore"):
            call()
    registry.restore([("a", {"n": 1})])
    assert registry.get("a").value == {"n": 1}
    registry.check()


def test_a_snapshot_from_before_is_another_epoch(tmp_path):
    """Also when writes have brought its revisions past the one that a client knows."""
    with server(tmp_path / "redis") as one:
        registry = open_registry(one.url)
        registry.put("a", {"n": 1}, ABSENT)
        one.client().save()
        lost = registry.put("a", {"n": 2}, None)
        one.kill()
        one.start()
        assert registry.get("a").value == {"n": 1}
        for n in range(5):
            assert registry.put("b", {"n": n}, None) > lost
        assert registry.changes(lost) == Gone()
        with pytest.raises(Conflict):
            registry.put("a", {"n": 3}, lost)
        registry.check()
        registry.close()


def test_a_feed_that_was_trimmed_is_gone(redis_alone):
    registry = RedisRegistry(RedisSettings.parse(redis_alone.url), max_changes=10)
    start = registry.list("").rev
    for n in range(500):  # the stream is trimmed by whole nodes of 100 entries
        registry.put("a", {"n": n}, None)
    assert registry.changes(start) == Gone()
    end = start + 500
    assert [e.value for e in registry.changes(end - 10).events] == [{"n": 499}]
    assert redis_alone.client().xlen("{loraplex}:feed") < 250
    registry.check()
    registry.close()


def test_a_server_that_would_drop_records_is_refused(tmp_path):
    with (
        server(tmp_path / "redis", "--maxmemory-policy", "allkeys-lru") as one,
        pytest.raises(Unavailable, match="maxmemory-policy noeviction"),
    ):
        open_registry(one.url)


def test_a_wrong_database_is_refused(redis_alone):
    with unavailable("registry_refused", "Name a database"):
        open_registry(f"redis://127.0.0.1:{redis_alone.port}/99")


def test_nobody_waits_for_ever_for_a_connection(redis_alone):
    registry = open_registry(f"{redis_alone.url}?max_connections=1&timeout_s=0.3&confirm_s=2")
    redis_alone.freeze()
    errors = []

    def read():
        try:
            registry.get("a")
        except Unavailable as error:
            errors.append(error.code)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    redis_alone.thaw()
    assert sorted(errors) == ["registry_busy", "registry_slow"]
    assert registry.get("a") is None
    registry.close()


# Replicas ----------------------------------------------------------------------------------------
@pytest.fixture
def pair(tmp_path):
    with replicated(tmp_path / "pair", num_sentinels=0) as pair:
        yield pair


def test_a_write_that_no_replica_confirms_says_so(pair):
    registry = open_registry(f"{pair.master.url}?confirm_s=0.2")
    rev = registry.put("a", {"n": 1}, ABSENT)
    pair.replica.freeze()
    with unavailable("registry_unconfirmed", "0 of 1 replicas") as told:
        registry.put("a", {"n": 2}, rev)
    assert str(rev + 1) in told.value.message
    assert registry.get("a").rev == rev + 1
    with unavailable("registry_unconfirmed"):
        registry.confirm()
    pair.replica.thaw()
    registry.confirm()
    assert registry.put("a", {"n": 3}, rev + 1) == rev + 2
    registry.check()
    registry.close()


def test_replicas_that_must_be_there_are_missed_before_anything_is_written(pair):
    two = open_registry(f"{pair.master.url}?replicas=2&confirm_s=0.2")
    with unavailable("registry_unavailable", "Nothing was changed"):
        two.put("a", {"n": 1}, ABSENT)
    assert two.get("a") is None
    none = open_registry(f"{pair.master.url}?replicas=0")
    pair.replica.freeze()
    assert none.put("a", {"n": 1}, ABSENT) > 0
    pair.replica.thaw()
    two.close()
    none.close()


def test_a_replica_is_not_written_to(pair):
    registry = open_registry(pair.master.url)
    rev = registry.put("a", {"n": 1}, ABSENT)
    replica = open_registry(pair.replica.url)
    assert replica.get("a").rev == rev
    with unavailable("registry_read_only", r"redis\+sentinel"):
        replica.put("a", {"n": 2}, rev)
    assert registry.get("a").rev == rev
    registry.close()
    replica.close()


def test_a_failover_that_loses_writes_is_noticed_by_everybody(tmp_path):
    """Writes go on by themselves; a lost one is in no listing and its revision never again good."""
    with replicated(tmp_path / "fleet") as fleet:
        writer, follower = (open_registry(f"{fleet.url}?timeout_s=1") for _ in range(2))
        careful = open_registry(f"{fleet.url}?replicas=1")
        kept = writer.put("kept", {"n": 1}, ABSENT)
        # Parted from its master, the replica lacks what comes now.
        fleet.replica.client().replicaof("127.0.0.1", 1)
        until(lambda: fleet.master.client().info("replication")["connected_slaves"] == 0)
        with unavailable("registry_unavailable", "Nothing was changed"):
            careful.put("kept", {"n": 2}, kept)
        lost = writer.put("kept", {"n": 2}, kept)
        assert follower.get("kept").rev == follower.changes(kept).rev == lost
        fleet.master.kill()
        with unavailable("registry_unavailable"):
            writer.put("kept", {"n": 3}, lost)
        until(lambda: answers(follower), 30)
        fleet.wait_for_promotion()
        assert follower.get("kept").value == {"n": 1}
        for n in range(3):
            assert writer.put("other", {"n": n}, None) > lost
        assert follower.changes(lost) == follower.changes(kept) == Gone()
        with pytest.raises(Conflict):
            writer.put("kept", {"n": 3}, lost)
        # The former master joins the new one, and confirms its writes.
        fleet.master.options += ("--replicaof", "127.0.0.1", str(fleet.replica.port))
        fleet.master.start()
        until(lambda: is_online(fleet.replica))
        rev = careful.put("kept", {"n": 4}, kept)
        stored = fleet.master.client().hget("{loraplex}:entries", "kept")
        assert int(stored.split()[0]) == rev
        writer.check()
        for registry in (writer, follower, careful):
            registry.close()


def answers(registry):
    try:
        registry.list("")
    except Unavailable:
        return False
    return True
