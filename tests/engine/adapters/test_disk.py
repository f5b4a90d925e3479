"""The disk tier keeps its budget and never shows half a version."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.adapters.disk import STALE_S, DiskTier
from engine.adapters.folder_store import FolderStore
from engine.adapters.store import ObjectMissing, object_prefix
from engine.errors import AdapterUnavailable

PARTS = ("manifest.json", "adapter_model.safetensors")


def prefix(n: int) -> str:
    return object_prefix("acme", f"{n:064x}")


@pytest.fixture
def store(tmp_path):
    store = FolderStore(tmp_path / "objects")
    for n in range(6):
        for part in PARTS:
            store.put(f"{prefix(n)}/{part}", bytes([n]) * 50)
    return store


def fill(tier, store, n):
    return tier.fill(store, prefix(n), PARTS, 100)


def test_a_copy_is_found_again_whole(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    assert tier.find(prefix(1)) is None
    folder = fill(tier, store, 1)
    assert tier.find(prefix(1)) == folder
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == dict.fromkeys(PARTS, b"\1" * 50)
    assert DiskTier(tmp_path / "disk", 1000).find(prefix(1)) == folder
    tier.drop(prefix(1))
    assert tier.find(prefix(1)) is None
    tier.check()


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


def test_a_failed_copy_leaves_nothing(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    store.delete(f"{prefix(0)}/{PARTS[1]}")
    with pytest.raises(ObjectMissing):
        fill(tier, store, 0)
    assert tier.find(prefix(0)) is None and tier.num_bytes() == 0
    assert list((tmp_path / "disk" / "incoming").iterdir()) == []
    tier.check()


def test_what_a_dead_loader_left_is_cleared(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 1000)
    old, new = (tmp_path / "disk" / "incoming" / name for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir()
    past = old.stat().st_mtime - 2 * STALE_S
    os.utime(old, (past, past))
    tier = DiskTier(tmp_path / "disk", 1000)
    assert not old.exists() and new.exists()
    tier.check()


def test_two_replicas_may_fill_the_same_version(store, tmp_path):
    """Whoever is second uses what is there."""
    tiers = [DiskTier(tmp_path / "disk", 1000) for _ in range(2)]
    folders = [fill(tier, store, 1) for tier in tiers]
    assert folders[0] == folders[1] == tiers[0].find(prefix(1))
    assert tiers[0].num_bytes() == 100


def test_threads_together_keep_the_budget(store, tmp_path):
    tier = DiskTier(tmp_path / "disk", 250)
    errors = []

    def work(n):
        try:
            for i in range(10):
                fill(tier, store, (n + i) % 6)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    tier.check()
    # One evicts before it copies, so the last may find itself alone.
    assert tier.num_bytes() in (100, 200)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12), st.integers(1, 4))
def test_the_budget_holds_whatever_is_asked(tmp_path_factory, steps, room):
    folder = tmp_path_factory.mktemp("disk")
    store = FolderStore(folder / "objects")
    for n in range(6):
        for part in PARTS:
            store.put(f"{prefix(n)}/{part}", bytes([n]) * 50)
    tier = DiskTier(folder / "disk", 100 * room)
    for n, keep in steps:
        copy = tier.find(prefix(n)) or fill(tier, store, n)
        assert (copy / PARTS[0]).read_bytes() == bytes([n]) * 50
        if not keep:
            tier.drop(prefix(n))
        tier.check()
    shutil.rmtree(folder)
