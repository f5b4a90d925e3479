"""What every object store keeps to. A backend joins by a line in `BACKENDS`."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from engine.adapters.store import CHUNK_BYTES, ObjectMissing, object_prefix, open_store
from engine.errors import AdapterUnavailable, LoraplexError

BACKENDS = ["file"]
KEY = "adapters/acme/0123/manifest.json"


@pytest.fixture(params=BACKENDS)
def store(request, tmp_path):
    return open_store({"file": f"file://{tmp_path}/objects"}[request.param])


def content(store, key, start=0):
    return b"".join(store.read(key, start))


def test_an_object_comes_back(store, tmp_path):
    assert store.put(KEY, b"hello") == 5
    assert content(store, KEY) == b"hello"
    assert store.size(KEY) == 5
    big = os.urandom(2 * CHUNK_BYTES + 3)
    (tmp_path / "big").write_bytes(big)
    assert store.put(KEY, tmp_path / "big") == len(big)
    assert content(store, KEY) == big
    store.put(KEY, b"")
    assert store.size(KEY) == 0 and content(store, KEY) == b""


@pytest.mark.parametrize("start", [0, 1, 5, 9])
def test_a_read_goes_on_from_where_it_was_cut(store, start):
    store.put(KEY, b"hello")
    assert content(store, KEY, start) == b"hello"[start:]


def test_what_is_absent_is_missing_and_nothing_else(store):
    for key in (KEY, "adapters", "adapters/acme/0123/manifest.json/deeper"):
        assert store.size(key) is None
        with pytest.raises(ObjectMissing):
            content(store, key)
        store.delete(KEY)
    store.put(KEY, b"x")
    assert store.size("adapters/acme") is None
    with pytest.raises(ObjectMissing):
        content(store, "adapters/acme")


def test_keys_are_listed_by_prefix(store):
    for key in ("adapters/b/1", "adapters/a/2", "adapters/a/1", "adapters/ab/1"):
        store.put(key, b"x")
    assert store.list("adapters/a/") == ["adapters/a/1", "adapters/a/2"]
    assert store.list("adapters/a") == ["adapters/a/1", "adapters/a/2", "adapters/ab/1"]
    assert len(store.list("")) == 4
    assert store.list("adapters/c/") == []


def test_a_deleted_object_is_gone_and_its_neighbour_stays(store):
    store.put("adapters/a/1", b"x")
    store.put("adapters/a/2", b"y")
    store.delete("adapters/a/1")
    store.delete("adapters/a/1")
    assert store.list("") == ["adapters/a/2"]
    store.delete("adapters/a/2")
    assert store.list("") == [] and store.size("adapters") is None
    store.put("adapters/a/1", b"z")
    assert content(store, "adapters/a/1") == b"z"


# A-TRAVERSAL
@pytest.mark.parametrize(
    "key",
    ["", "/", "/etc/passwd", "..", "a/../b", "a/./b", "a//b", "a/", "a\0b", ".incoming/x", "a b"]
    + ["ä", "a" * 200, "%2e%2e/x", "a\n"],
)
def test_what_is_no_key_touches_nothing(store, key):
    calls = [
        lambda: store.put(key, b"x"),
        lambda: content(store, key),
        lambda: store.size(key),
        lambda: store.delete(key),
        lambda: store.local_path(key),
    ]
    for call in calls:
        with pytest.raises(ValueError):
            call()


def test_readers_see_the_old_or_the_new_and_never_a_part(store):
    """Writers replace an object while readers read it."""
    versions = [bytes([n]) * (CHUNK_BYTES + n) for n in range(4)]
    store.put(KEY, versions[0])
    stop, torn = threading.Event(), []

    def read():
        while not stop.is_set():
            if content(store, KEY) not in versions:
                torn.append(1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for _ in range(5):
        for version in versions:
            store.put(KEY, version)
    stop.set()
    for thread in readers:
        thread.join()
    assert not torn


def test_a_failed_put_leaves_the_old_object_and_no_scraps(store, tmp_path):
    store.put(KEY, b"old")
    with pytest.raises(LoraplexError):
        store.put(KEY, tmp_path / "nothing")
    assert content(store, KEY) == b"old"
    assert store.list("") == [KEY]


# The folder alone ---------------------------------------------------------------------------------
def test_a_put_that_fails_leaves_no_temporary_file(tmp_path):
    store = open_store(f"file://{tmp_path}/objects")
    with pytest.raises(AdapterUnavailable):
        store.put(KEY, tmp_path / "nothing")
    assert list((tmp_path / "objects" / ".incoming").iterdir()) == []


def test_a_folder_is_read_in_place(tmp_path):
    store = open_store(f"file://{tmp_path}/with%20space")
    store.put(KEY, b"x")
    assert store.local_path(KEY) == tmp_path / "with space" / KEY
    assert store.url == f"file://{tmp_path}/with%20space"


def test_a_store_that_vanished_is_unreachable_not_empty(tmp_path):
    """C-S3-ERRORS, for a file system that is no longer mounted."""
    store = open_store(f"file://{tmp_path}/objects")
    store.put(KEY, b"x")
    shutil.rmtree(tmp_path / "objects")
    for call in (
        lambda: store.size(KEY),
        lambda: content(store, KEY),
        lambda: store.list(""),
        lambda: store.put(KEY, b"x"),
    ):
        with pytest.raises(AdapterUnavailable) as raised:
            call()
        assert not isinstance(raised.value, ObjectMissing)


def test_an_unreadable_object_is_unavailable_with_its_cause(tmp_path):
    store = open_store(f"file://{tmp_path}/objects")
    store.put("a/b", b"x")
    path = store.local_path("a/b")
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(AdapterUnavailable, match="symbolic links") as raised:
        content(store, "a/b")
    assert not isinstance(raised.value, ObjectMissing)


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "file://relative", "http://x/y", "/a", ""])
def test_a_url_that_cannot_be_served_says_so(url):
    with pytest.raises(LoraplexError, match=r"file:///path/to/folder"):
        open_store(url)


def test_a_version_lies_where_its_identity_says():
    digest = "0123456789abcdef" * 4
    assert object_prefix("acme", digest) == f"adapters/acme/{digest}"
    for tenant, wrong in [("../x", digest), ("acme", "../x"), ("acme", digest.upper()), ("", "")]:
        with pytest.raises(ValueError):
            object_prefix(tenant, wrong)
