"""What every object store keeps to, on real ones. A backend joins by a line in `make_url`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import boto3
import pytest

from engine.adapters.store import CHUNK_BYTES, ObjectChanged, ObjectMissing, open_store
from engine.errors import LoraplexError
from tests.support.s3_server import BUCKET, IMPATIENT, new_prefix

KEY = "adapters/acme/0123/manifest.json"
PART_BYTES = IMPATIENT.part_bytes


@pytest.fixture(params=["file", "s3"])
def url(request, tmp_path):
    """Of a new and empty store."""
    if request.param == "file":
        return f"file://{tmp_path}/objects"
    return request.getfixturevalue("s3").url(new_prefix())


@pytest.fixture
def store(url):
    return open_store(url, IMPATIENT)


def content(store, key, start=0):
    return b"".join(store.read(key, start))


def test_an_object_comes_back(store, tmp_path):
    assert store.put(KEY, b"hello") == 5
    assert content(store, KEY) == b"hello"
    assert store.size(KEY) == 5
    for num_bytes in (2 * CHUNK_BYTES + 3, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 1):
        big = os.urandom(num_bytes)
        (tmp_path / "big").write_bytes(big)
        assert store.put(KEY, tmp_path / "big") == len(big)
        assert content(store, KEY) == big and store.size(KEY) == len(big)
    store.put(KEY, b"")
    assert store.size(KEY) == 0 and content(store, KEY) == b""


@pytest.mark.parametrize("start", [0, 1, 5, 9])
def test_a_read_goes_on_from_where_it_was_cut(store, start):
    store.put(KEY, b"hello")
    assert content(store, KEY, start) == b"hello"[start:]


def test_an_object_tells_its_length_and_is_read_from_anywhere(store):
    data = os.urandom(CHUNK_BYTES + 7)
    store.put(KEY, data)
    with store.open(KEY) as opened:
        assert opened.num_bytes == len(data)
        pieces = list(opened.pieces)
    assert b"".join(pieces) == data and all(0 < len(p) <= CHUNK_BYTES for p in pieces)
    for start in (1, CHUNK_BYTES, len(data), len(data) + 9):
        with store.open(KEY, start, opened.etag) as rest:
            assert (rest.num_bytes, rest.etag) == (len(data), opened.etag)
            assert b"".join(rest.pieces) == data[start:]


def test_an_etag_names_one_object_and_no_other(store):
    store.put(KEY, b"first")
    with store.open(KEY) as opened:
        etag = opened.etag
    store.put(KEY, b"other")
    for start in (0, 2):
        with pytest.raises(ObjectChanged), store.open(KEY, start, etag):
            pass
    with store.open(KEY, 2) as opened:
        assert opened.etag != etag and b"".join(opened.pieces) == b"her"


def test_an_object_that_is_left_half_read_harms_nobody(store):
    data = os.urandom(4 * CHUNK_BYTES)
    store.put(KEY, data)
    for _ in range(IMPATIENT.max_connections + 4):
        with store.open(KEY) as opened:
            assert data.startswith(next(opened.pieces))
    assert content(store, KEY) == data


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


def test_a_listing_tells_how_large_and_how_old_each_object_is(store):
    before_s = time.time()
    store.put("adapters/a/1", b"hello")
    store.put("adapters/b/1", b"")
    (stored,) = store.stored("adapters/a/")
    assert (stored.key, stored.num_bytes) == ("adapters/a/1", 5)
    assert abs(stored.modified_s - before_s) < 60
    assert [s.key for s in store.stored("")] == store.list("")


def test_what_others_have_put_under_no_key_is_not_listed(store, url, tmp_path, request):
    store.put("uploads/x", b"x")
    if url.startswith("file:"):
        (tmp_path / "objects" / "uploads" / "a b").write_bytes(b"x")
    else:
        prefix = url.split("?")[0].removeprefix(f"s3://{BUCKET}/")
        endpoint = request.getfixturevalue("s3").endpoint
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/uploads/a b", Body=b"x")
    assert store.list("uploads/") == ["uploads/x"]


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


def test_what_is_no_key_touches_nothing(store):
    """A-TRAVERSAL."""
    keys = ["", "/", "/etc/passwd", "..", "a/../b", "a/./b", "a//b", "a/", "a\0b", ".incoming/x"]
    keys += ["a b", "ä", "a" * 200, "%2e%2e/x", "a\n"]
    calls = [
        lambda key: store.put(key, b"x"),
        lambda key: content(store, key),
        store.size,
        store.delete,
        store.local_path,
    ]
    for key in keys:
        for call in calls:
            with pytest.raises(ValueError):
                call(key)
    assert store.list("") == []


def test_readers_see_the_old_or_the_new_and_never_a_part(store):
    """Writers replace an object while readers read it."""
    versions = [bytes([n]) * ((CHUNK_BYTES >> 2) + n) for n in range(4)]
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


def test_two_writers_of_one_key_leave_one_whole_object(store, tmp_path):
    versions = [bytes([n]) * (PART_BYTES + n) for n in range(2)]
    for n, version in enumerate(versions):
        (tmp_path / f"v{n}").write_bytes(version)
    start = threading.Barrier(2)

    def write(n):
        start.wait()
        for _ in range(2):
            store.put(KEY, tmp_path / f"v{n}")

    writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    assert content(store, KEY) in versions
    assert store.list("") == [KEY]


@pytest.mark.parametrize("num_bytes", [5, pytest.param(PART_BYTES + 5, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_line_leaves_the_old_or_the_new(url, store, tmp_path, num_bytes):
    """SIGKILL before each line of ours that a put runs; what it left is found and dropped."""
    (tmp_path / "new").write_bytes(b"n" * num_bytes)
    store.put(KEY, b"old")
    command = [sys.executable, "-m", "tests.support.killed_writer", url, KEY, str(tmp_path / "new")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout)
    assert report["kills"] > 10
    assert set(report["seen"]) == {"old", "new"}, "each kill was before or after the change"
    assert report["keys"] == [KEY]
    store.put("adapters/acme/0123/another", b"x")
    assert store.drop_unfinished(0.0) == 0, "of none that began so long ago"
    counted = store.drop_unfinished(time.time() + 3600, dry_run=True)
    left = store.drop_unfinished(time.time() + 3600)
    assert left == counted
    assert left > 0 or (url.startswith("s3:") and num_bytes < PART_BYTES)
    assert store.drop_unfinished(time.time() + 3600) == 0
    assert content(store, KEY) == b"n" * num_bytes
