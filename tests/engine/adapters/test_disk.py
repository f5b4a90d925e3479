"""The disk tier keeps its budget, never shows half a version, and goes on where it stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.adapters.disk import DiskTier, Wanted
from engine.adapters.folder_store import FolderStore
from engine.adapters.partials import STALE_S
from engine.adapters.store import (
    MANIFEST,
    TENSORS,
    AdapterCorrupt,
    Content,
    ObjectMissing,
    object_prefix,
)
from engine.errors import AdapterUnavailable


def prefix(n: int) -> str:
    return object_prefix("acme", f"{n:064x}")


class CutStore(FolderStore):
    """Reads of `TENSORS` in pieces of ten bytes that end with an error after `cut` of them."""

    cut: int | None = None

    def __init__(self, root):
        super().__init__(root)
        self.starts = []

    @contextlib.contextmanager
    def open(self, key, start=0, etag=""):
        with super().open(key, start, etag) as content:
            self.starts.append(start)
            yield Content(content.num_bytes, content.etag, self._cut(content.pieces))

    def _cut(self, pieces):
        data = b"".join(pieces)
        for at in range(0, len(data), 10):
            if self.cut is not None and at >= self.cut:
                raise AdapterUnavailable("cut", code="store_cut")
            yield data[at : at + 10]


@pytest.fixture
def store(tmp_path):
    store = CutStore(tmp_path / "objects")
    for n in range(6):
        store.put(f"{prefix(n)}/{TENSORS}", bytes(range(n, n + 50)))
    return store


def wanted(n):
    return Wanted(prefix(n), TENSORS, 50, {MANIFEST: bytes([n]) * 50})


def whole(n, folder):
    """What a verifier says of a good copy: its folder."""
    assert (folder / MANIFEST).read_bytes() == bytes([n]) * 50
    if (folder / TENSORS).read_bytes() != bytes(range(n, n + 50)):
        raise AdapterCorrupt("It is another.")
    return folder


def fill(tier, store, n):
    tier.fill(store, wanted(n), lambda folder: whole(n, folder))
    return tier.find(prefix(n))


def incoming(tmp_path):
    return [p.name for p in (tmp_path / "disk" / "incoming").iterdir()]


def test_a_copy_is_found_again_whole(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    assert tier.find(prefix(1)) is None
    folder = fill(tier, store, 1)
    assert {p.name for p in folder.iterdir()} == {MANIFEST, TENSORS}
    whole(1, folder)
    assert DiskTier(tmp_path / "disk", 1000).find(prefix(1)) == folder
    tier.drop(prefix(1))
    assert tier.find(prefix(1)) is None and incoming(tmp_path) == []
    tier.check()


def test_nobody_sees_a_copy_before_it_is_verified(store, tmp_path):
    tier, other = (DiskTier(tmp_path / "disk", 1000) for _ in range(2))

    def verify(folder):
        assert other.find(prefix(1)) is None
        return whole(1, folder).name

    assert tier.fill(store, wanted(1), verify) == "files"
    assert other.find(prefix(1)) is not None


def test_the_one_not_used_for_longest_goes_first(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 300)
    for n in range(3):
        os.utime(fill(tier, store, n), (n + 1, n + 1))
    tier.find(prefix(0))
    fill(tier, store, 3)
    tier.check()
    assert [tier.find(prefix(n)) is not None for n in range(4)] == [True, False, True, True]


def test_a_version_beyond_the_budget_is_refused_with_both_numbers(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 99)
    with pytest.raises(AdapterUnavailable, match="100 bytes; the disk tier may hold 99"):
        fill(tier, store, 0)


def test_an_absent_object_leaves_nothing_to_be_seen(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    store.delete(f"{prefix(0)}/{TENSORS}")
    with pytest.raises(ObjectMissing):
        fill(tier, store, 0)
    assert tier.find(prefix(0)) is None and tier.num_bytes() == 0
    tier.check()


# Interrupted copies -------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", [0, 10, 30])
def test_a_cut_copy_goes_on_where_it_stopped_in_the_next_process_too(store, tmp_path, cut):
    store.cut = cut
    with pytest.raises(AdapterUnavailable, match="cut"):
        fill(DiskTier(tmp_path / "disk", 1000), store, 1)
    store.cut = None
    tier = DiskTier(tmp_path / "disk", 1000)
    assert tier.find(prefix(1)) is None
    tier.check()
    whole(1, fill(tier, store, 1))
    assert store.starts == [0, cut]
    assert incoming(tmp_path) == []


def test_a_copy_of_an_object_that_has_changed_begins_anew(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    store.cut = 20
    with pytest.raises(AdapterUnavailable):
        fill(tier, store, 1)
    store.cut = None
    store.put(f"{prefix(1)}/{TENSORS}", bytes(range(1, 51)))
    whole(1, fill(tier, store, 1))
    assert store.starts == [0, 0]


def test_a_copy_that_goes_on_from_bad_bytes_is_gone_and_the_next_is_good(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    store.cut = 20
    with pytest.raises(AdapterUnavailable):
        fill(tier, store, 1)
    store.cut = None
    (partial,) = (tmp_path / "disk" / "incoming").iterdir()
    (partial / "files" / TENSORS).write_bytes(b"x" * 20)
    with pytest.raises(AdapterCorrupt):
        fill(tier, store, 1)
    assert tier.find(prefix(1)) is None and incoming(tmp_path) == []
    whole(1, fill(tier, store, 1))


def test_an_object_of_another_length_is_not_what_was_published(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    store.put(f"{prefix(1)}/{TENSORS}", b"short")
    with pytest.raises(AdapterCorrupt, match="5 bytes, not the 50"):
        fill(tier, store, 1)


def test_interrupted_copies_count_and_make_way(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 200)
    store.cut = 40
    for n in range(2):
        with pytest.raises(AdapterUnavailable):
            fill(tier, store, n)
        tier.check()
    store.cut = None
    for n in (2, 3):
        fill(tier, store, n)
        tier.check()
    assert incoming(tmp_path) == [] and tier.num_bytes() == 200


def test_what_was_forgotten_is_cleared(tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    old, new = (tmp_path / "disk" / "incoming" / name for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir()
    past = old.stat().st_mtime - 2 * STALE_S
    os.utime(old, (past, past))
    tier = DiskTier(tmp_path / "disk", 1000)
    assert not old.exists() and new.exists()
    tier.check()


FILLER = """
import sys, time
from pathlib import Path
from engine.adapters.disk import DiskTier, Wanted
from engine.adapters.folder_store import FolderStore

def verify(folder):
    Path(sys.argv[2]).touch()
    time.sleep(60)

prefix = sys.argv[3]
wanted = Wanted(prefix, "adapter_model.safetensors", 50, {"manifest.json": b""})
DiskTier(sys.argv[1] + "/disk", 1000).fill(FolderStore(sys.argv[1] + "/objects"), wanted, verify)
"""


def test_a_loader_that_was_killed_leaves_what_the_next_goes_on_with(store, tmp_path):
    """SIGKILL once all has arrived, and before anybody may see it."""
    mark = tmp_path / "mark"
    child = subprocess.Popen([sys.executable, "-c", FILLER, tmp_path, mark, prefix(1)])
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    tier = DiskTier(tmp_path / "disk", 1000)
    assert tier.find(prefix(1)) is None
    whole(1, fill(tier, store, 1))
    assert store.starts == [50]


# Several at once ----------------------------------------------------------------------------------
def test_two_replicas_fetch_a_version_once(store, tmp_path):
    """Whoever is second waits, and uses what is there then."""
    tiers = [DiskTier(tmp_path / "disk", 1000) for _ in range(2)]
    threads = [threading.Thread(target=fill, args=(tier, store, 1)) for tier in tiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.starts == [0]
    assert tiers[0].num_bytes() == 100


@pytest.mark.parametrize("room", [1, 2, 3])
def test_threads_together_keep_the_budget(store, tmp_path, room):
    tier = DiskTier(tmp_path / "disk", 100 * room + 50)
    errors = []

    def work(n):
        try:
            for i in range(10):
                fill(tier, store, (n + i) % 6)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    tier.check()
    assert 100 <= tier.num_bytes() <= 100 * room


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["keep", "drop", "cut"])), max_size=12),
    st.integers(1, 4),
)
def test_the_budget_holds_whatever_is_asked(tmp_path_factory, steps, room):
    folder = tmp_path_factory.mktemp("disk")
    store = CutStore(folder / "objects")
    for n in range(6):
        store.put(f"{prefix(n)}/{TENSORS}", bytes(range(n, n + 50)))
    tier = DiskTier(folder / "disk", 100 * room)
    for n, what in steps:
        store.cut = 20 if what == "cut" else None
        with contextlib.suppress(AdapterUnavailable):
            whole(n, tier.find(prefix(n)) or fill(tier, store, n))
        if what == "drop":
            tier.drop(prefix(n))
        tier.check()
    shutil.rmtree(folder)
