"""What every registry backend keeps to. A backend joins by a line in `BACKENDS`."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.registry import open_registry
from deployments.registry.registry import ABSENT, Changes, Entry, Gone
from deployments.registry.sqlite import SqliteRegistry
from engine.errors import Conflict, LoraplexError, Unavailable

BACKENDS = ["sqlite"]


@pytest.fixture(params=BACKENDS)
def url(request, tmp_path):
    return {"sqlite": f"sqlite://{tmp_path}/registry.db"}[request.param]


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
        subprocess.Popen([sys.executable, "-c", INCREMENT, url, "40"], cwd=root) for _ in range(3)
    ]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert registry.get("n").value == {"n": 120}


def test_threads_lose_no_update_and_a_follower_misses_none(registry):
    """Followers see every key's last state, though they read while others write."""
    seen, stop = {}, threading.Event()

    def follow():
        rev = 0
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


KEYS = st.sampled_from(["a", "a/b", "b", "c"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete"]), KEYS, st.booleans(), st.booleans()), max_size=30
)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_it_behaves_like_a_dictionary(tmp_path_factory, steps):
    """And whoever follows the changes holds the same dictionary."""
    registry = SqliteRegistry(tmp_path_factory.mktemp("r") / "registry.db", max_tombstones=2)
    model, revs, mirror, mirror_rev = {}, {}, {}, 0
    for number, (verb, key, right, follow) in enumerate(steps):
        expected = revs.get(key, ABSENT) if right else revs.get(key, ABSENT) + 1000
        try:
            if verb == "put":
                revs[key] = registry.put(key, {"n": number}, expected)
                model[key] = {"n": number}
            else:
                registry.delete(key, expected)
                model.pop(key, None)
                revs.pop(key, None)
            assert right
        except Conflict:
            assert not right
        registry.check()
        if follow:
            changes = registry.changes(mirror_rev)
            if isinstance(changes, Gone):
                listing = registry.list("")
                mirror = {e.key: e.value for e in listing.entries}
                mirror_rev = listing.rev
            else:
                mirror.update({e.key: e.value for e in changes.events})
                mirror = {k: v for k, v in mirror.items() if v is not None}
                mirror_rev = changes.rev
            assert mirror == model
        assert {e.key: e.value for e in registry.list("").entries} == model
    registry.close()


# SQLite alone ------------------------------------------------------------------------------------
def test_a_feed_that_was_trimmed_is_gone(tmp_path):
    registry = SqliteRegistry(tmp_path / "registry.db", max_tombstones=2)
    start = registry.list("").rev
    for n in range(4):
        registry.put(f"k{n}", {}, ABSENT)
        registry.delete(f"k{n}", None)
        registry.check()
    assert registry.changes(start) == Gone()
    assert isinstance(registry.changes(registry.list("").rev), Changes)
    registry.close()


def test_a_damaged_file_is_unavailable_and_named(tmp_path):
    path = tmp_path / "registry.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(Unavailable, match=r"registry\.db"):
        SqliteRegistry(path)


def test_a_file_of_a_later_release_is_refused(tmp_path):
    path = tmp_path / "registry.db"
    registry = SqliteRegistry(path)
    registry._writer.execute("PRAGMA user_version = 99")
    registry.close()
    with pytest.raises(Unavailable, match="schema 99"):
        SqliteRegistry(path)


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        SqliteRegistry(tmp_path / "file" / "registry.db")


def test_a_busy_registry_is_unavailable_and_reads_go_on(tmp_path):
    path = tmp_path / "registry.db"
    one, two = SqliteRegistry(path), SqliteRegistry(path, busy_timeout_s=0.05)
    one.put("a", {"n": 1}, ABSENT)
    one._writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        two.put("a", {"n": 2}, None)
    assert two.get("a").value == {"n": 1}
    one._writer.execute("ROLLBACK")
    two.put("a", {"n": 2}, None)
    assert one.get("a").value == {"n": 2}
    one.close()
    two.close()


@pytest.mark.parametrize(
    "url", ["redis://localhost:6379/0", "sqlite://relative.db", "mysql://x/y", ""]
)
def test_a_url_that_cannot_be_served_says_so(url):
    with pytest.raises(LoraplexError, match=r"sqlite:///path/to/file"):
        open_registry(url)
