"""What every registry backend keeps to. A backend joins by a line in `url`."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deployments.registry import open_registry
from deployments.registry.registry import ABSENT, Changes, Entry, Gone
from engine.errors import Conflict


@pytest.fixture(params=["sqlite", "redis", "sentinel"])
def url(request, tmp_path):
    """Of an empty registry."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/registry.db"
    server = request.getfixturevalue("redis_server" if request.param == "redis" else "sentinels")
    # Tests share the server; each has keys of its own there.
    return f"{server.url}?prefix=t{secrets.token_hex(4)}"


@pytest.fixture
def registry(url):
    registry = open_registry(url)
    yield registry
    registry.check()
    registry.close()


def test_a_value_comes_back_with_its_revision(registry):
    value = {"name": "ünïcode", "n": 1, "nested": {"list": [1, 2.5, None, True]}}
    rev = registry.put("tenant/acme", value, ABSENT)
    assert registry.get("tenant/acme") == Entry("tenant/acme", value, rev)
    assert registry.get("tenant/acm") is None


def test_a_write_needs_the_revision_it_was_based_on(registry):
    first = registry.put("a", {"n": 1}, ABSENT)
    second = registry.put("a", {"n": 2}, first)
    assert second > first
    for stale in (ABSENT, first, second + 1):
        with pytest.raises(Conflict):
            registry.put("a", {"n": 3}, stale)
        with pytest.raises(Conflict):
            registry.delete("a", stale)
    assert registry.get("a") == Entry("a", {"n": 2}, second)
    assert registry.put("a", {"n": 4}, None) > second


def test_a_deleted_key_is_absent(registry):
    rev = registry.put("a", {}, ABSENT)
    assert registry.delete("a", rev) > rev
    assert registry.get("a") is None
    assert registry.list("").entries == ()
    with pytest.raises(Conflict):
        registry.put("a", {}, rev)
    registry.put("a", {"again": True}, ABSENT)
    assert registry.get("a").value == {"again": True}


def test_deleting_what_is_not_there_changes_nothing(registry):
    before = registry.list("").rev
    assert registry.delete("a", None) == before
    with pytest.raises(Conflict):
        registry.delete("a", 7)


def test_a_listing_holds_the_prefix_and_nothing_beside_it(registry):
    for key in ("adapter/acme/b", "adapter/acme/a", "adapter/acme2/a", "adapter/acm", "key/x"):
        registry.put(key, {"k": key}, ABSENT)
    listing = registry.list("adapter/acme/")
    assert [e.key for e in listing.entries] == ["adapter/acme/a", "adapter/acme/b"]
    assert [e.value for e in listing.entries] == [{"k": e.key} for e in listing.entries]
    assert len(registry.list("").entries) == 5
    assert registry.changes(listing.rev) == Changes((), listing.rev)


def test_prefixes_are_no_patterns(registry):
    registry.put("a_b/1", {}, ABSENT)
    registry.put("axb/1", {}, ABSENT)
    assert [e.key for e in registry.list("a_b/").entries] == ["a_b/1"]
    assert registry.list("a%").entries == ()


def test_changes_tell_each_key_once_with_its_newest_state(registry):
    start = registry.list("").rev
    registry.put("a", {"n": 1}, ABSENT)
    registry.put("b", {"n": 1}, ABSENT)
    registry.put("a", {"n": 2}, None)
    registry.delete("b", None)
    changes = registry.changes(start)
    assert [(e.key, e.value) for e in changes.events] == [("a", {"n": 2}), ("b", None)]
    revs = [e.rev for e in changes.events]
    assert revs == sorted(revs) and changes.rev == revs[-1]
    assert registry.changes(changes.rev) == Changes((), changes.rev)


def test_a_revision_of_another_registry_is_gone(registry):
    assert registry.changes(registry.list("").rev + 1) == Gone()
    assert registry.changes(-1) == Gone()


def test_values_outlive_their_process(url):
    with_one = open_registry(url)
    rev = with_one.put("a", {"n": 1}, ABSENT)
    with_one.close()
    again = open_registry(url)
    assert again.get("a") == Entry("a", {"n": 1}, rev)
    assert again.put("b", {}, ABSENT) > rev
    again.close()


def test_a_value_that_is_not_json_is_refused(registry):
    for value in ({"n": float("nan")}, {"n": object()}):
        with pytest.raises((ValueError, TypeError)):
            registry.put("a", value, ABSENT)
    assert registry.get("a") is None


INCREMENT = """
import sys
from deployments.registry import open_registry
from engine.errors import Conflict
registry = open_registry(sys.argv[1])
done = 0
while done < int(sys.argv[2]):
    entry = registry.get("n")
    try:
        registry.put("n", {"n": entry.value["n"] + 1}, entry.rev)
        done += 1
    except Conflict:
        pass
"""


def test_processes_lose_no_update(url, registry):
    registry.put("n", {"n": 0}, ABSENT)
    root = Path(__file__).resolve().parents[3]
    children = [
        subprocess.Popen([sys.executable, "-c", INCREMENT, url, "40"], cwd=root) for _ in range(4)
    ]
    assert [child.wait(60) for child in children] == [0, 0, 0, 0]
    assert registry.get("n").value == {"n": 160}


def test_threads_lose_no_update_and_a_follower_misses_none(registry):
    """Followers see every key's last state, though they read while others write."""
    seen, stop = {}, threading.Event()

    start = registry.list("").rev

    def follow():
        rev = start
        while True:
            last = stop.is_set()
            changes = registry.changes(rev)
            seen.update({e.key: e.value["n"] for e in changes.events})
            rev = changes.rev
            if last:
                return

    def write(name):
        for n in range(50):
            registry.put(name, {"n": n}, None)

    follower = threading.Thread(target=follow)
    writers = [threading.Thread(target=write, args=(f"w{i}",)) for i in range(3)]
    for thread in [follower, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    follower.join()
    assert seen == {"w0": 49, "w1": 49, "w2": 49}


def test_pages_join_to_the_whole(registry):
    keys = [f"k/{n:04}" for n in range(1203)]
    registry.restore((key, {"k": key}) for key in keys)
    registry.put("j", {}, ABSENT)
    registry.put("k", {}, ABSENT)
    registry.put("l", {}, ABSENT)
    pages, after = [], ""
    while True:
        page = registry.list("k/", after=after, limit=400).entries
        pages.append([entry.key for entry in page])
        if len(page) < 400:
            break
        after = page[-1].key
    assert [len(p) for p in pages] == [400, 400, 400, 3]
    assert [key for page in pages for key in page] == keys
    assert [e.key for e in registry.list("k/").entries] == keys
    assert registry.list("k/", after="k/1202").entries == ()
    assert registry.list("k/", limit=0).entries == ()
    assert [e.key for e in registry.list("", after="k/1202").entries] == ["l"]
    assert len(registry.list("", after="a", limit=3).entries) == 3


def test_keys_sort_by_their_bytes(registry):
    keys = ["a", "a/", "aa", "B", "z", "é", "\U0001f600", "\uffee", "a b", 'a"b']
    for key in keys:
        registry.put(key, {}, ABSENT)
    assert [e.key for e in registry.list("").entries] == sorted(keys, key=str.encode)
    assert [e.key for e in registry.list("a").entries] == ["a", "a b", 'a"b', "a/", "aa"]
    assert [e.key for e in registry.list("", after="z").entries] == ["é", "\uffee", "\U0001f600"]


def test_many_changes_come_at_once(registry):
    start = registry.list("").rev
    for n in range(620):
        registry.put(f"k{n % 400}", {"n": n}, None)
    changes = registry.changes(start)
    assert {e.key: e.value["n"] for e in changes.events} == {f"k{n % 400}": n for n in range(620)}
    assert len(changes.events) == 400 and changes.rev == start + 620
    later = registry.changes(start + 300)
    assert {e.value["n"] for e in later.events} == set(range(300, 620))


def test_a_restore_replaces_everything_and_begins_an_epoch(registry):
    old = registry.put("a", {"n": 1}, ABSENT)
    registry.put("b", {}, ABSENT)
    before = registry.list("").rev
    rev = registry.restore([("a", {"n": 2}), ("c", {})])
    assert [(e.key, e.value) for e in registry.list("").entries] == [("a", {"n": 2}), ("c", {})]
    assert registry.changes(before) == Gone()
    with pytest.raises(Conflict):
        registry.put("a", {}, old)
    assert registry.list("").rev == rev > before
    entry = registry.get("a")
    assert old < entry.rev <= rev
    registry.check()
    assert registry.put("a", {}, entry.rev) > rev
    assert [e.key for e in registry.changes(rev).events] == ["a"]
    registry.restore([])
    assert registry.list("").entries == ()


def test_a_restore_that_fails_changes_nothing(registry):
    registry.put("a", {"n": 1}, ABSENT)
    before = registry.list("")
    with pytest.raises(ValueError):
        registry.restore([("b", {}), ("c", {"n": float("nan")})])
    assert registry.list("") == before


def test_a_write_can_be_confirmed_again(registry):
    rev = registry.put("a", {}, ABSENT)
    registry.confirm()
    assert registry.changes(rev) == Changes((), rev)
