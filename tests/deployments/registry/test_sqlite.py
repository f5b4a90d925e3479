"""The registry in a file: what becomes of it, of a damaged one, and of one that others use."""

from __future__ import annotations

import pytest

from deployments.registry import open_registry
from deployments.registry.registry import ABSENT, Changes, Gone
from deployments.registry.sqlite import SqliteRegistry
from engine.errors import LoraplexError, Unavailable


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


@pytest.mark.parametrize("url", ["sqlite://relative.db", "mysql://x/y", ""])
def test_a_url_that_cannot_be_served_says_so(url):
    with pytest.raises(LoraplexError, match=r"sqlite:///path/to/file"):
        open_registry(url)
