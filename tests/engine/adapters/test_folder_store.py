"""The store in a folder, and the store that a URL names."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.adapters.store import ObjectMissing, object_prefix, open_store
from engine.errors import AdapterUnavailable, LoraplexError

KEY = "adapters/acme/0123/manifest.json"


def content(store, key, start=0):
    return b"".join(store.read(key, start))


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


@pytest.fixture
def switching():
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_puts_and_deletes_beside_each_other(tmp_path, switching):
    """A delete takes folders that have become empty, also those that a put has just made."""
    store = open_store(f"file://{tmp_path}/objects")

    def work(number):
        for _ in range(50):
            store.put(f"adapters/acme/x/{number}", b"x")
            store.delete(f"adapters/acme/x/{number}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert store.list("") == []


def test_an_unreadable_object_is_unavailable_with_its_cause(tmp_path):
    store = open_store(f"file://{tmp_path}/objects")
    store.put("a/b", b"x")
    path = store.local_path("a/b")
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(AdapterUnavailable, match="symbolic links") as raised:
        content(store, "a/b")
    assert not isinstance(raised.value, ObjectMissing)


@pytest.mark.parametrize("url", ["file://relative", "http://x/y", "/a", ""])
def test_a_url_that_cannot_be_served_says_so(url):
    with pytest.raises(LoraplexError, match=r"file:///path/to/folder"):
        open_store(url)


def test_a_version_lies_where_its_identity_says():
    digest = "0123456789abcdef" * 4
    assert object_prefix("acme", digest) == f"adapters/acme/{digest}"
    for tenant, wrong in [("../x", digest), ("acme", "../x"), ("acme", digest.upper()), ("", "")]:
        with pytest.raises(ValueError):
            object_prefix(tenant, wrong)
