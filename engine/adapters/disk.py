"""The disk tier: copies of stored versions in a folder of this host, within a budget of bytes.

The folder is the only state. Replicas of one host may share it: a version appears by one rename,
is used through open files, and the one not used for longest goes first. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.adapters.store import ObjectStore
from engine.errors import AdapterUnavailable

STALE_S = 3600.0
"""Older unfinished copies are of a loader that died."""


class DiskTier:
    """Below `root`, at most `max_bytes` of finished copies and those this process is making."""

    def __init__(self, root: str | Path, max_bytes: int) -> None:
        self._versions = Path(root) / "versions"
        self._incoming = Path(root) / "incoming"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._promised = 0
        self._versions.mkdir(parents=True, exist_ok=True)
        self._incoming.mkdir(exist_ok=True)
        for entry in self._incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < time.time() - STALE_S:
                    shutil.rmtree(entry, ignore_errors=True)

    def find(self, prefix: str) -> Path | None:
        """The folder of a version's copy, which counts as used now; None where there is none."""
        folder = self._folder(prefix)
        try:
            os.utime(folder)
        except FileNotFoundError:
            return None
        return folder

    def fill(self, store: ObjectStore, prefix: str, parts: Sequence[str], num_bytes: int) -> Path:
        """Copy `parts` of a version, `num_bytes` together, from `store`.

        Raises what the store raises, OSError, and AdapterUnavailable for more than the budget.
        """
        if num_bytes > self._max_bytes:
            raise AdapterUnavailable(
                f"The adapter has {num_bytes} bytes; the disk tier may hold {self._max_bytes}."
                " Raise disk_bytes."
            )
        with self._room(num_bytes), tempfile.TemporaryDirectory(dir=self._incoming) as scratch:
            copy = Path(scratch) / "copy"
            copy.mkdir()
            for part in parts:
                with (copy / part).open("wb") as file:
                    for data in store.read(f"{prefix}/{part}"):
                        file.write(data)
            folder = self._folder(prefix)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # another replica may have been faster
                copy.rename(folder)
            return folder

    def drop(self, prefix: str) -> None:
        """Forget a copy. Files of it that are open stay readable."""
        self._remove(self._folder(prefix))

    def num_bytes(self) -> int:
        """Of the finished copies."""
        return sum(size for _, size, _ in self._copies())

    def check(self) -> None:
        """Assert the budget, where no other process fills this folder."""
        assert self.num_bytes() + self._promised <= self._max_bytes
        assert self._promised >= 0

    @contextlib.contextmanager
    def _room(self, num_bytes: int) -> Iterator[None]:
        """Evict until `num_bytes` more fit, and hold them while the copy is made."""
        with self._lock:
            copies = sorted(self._copies())
            used = sum(size for _, size, _ in copies) + self._promised
            for _, size, folder in copies:
                if used + num_bytes <= self._max_bytes:
                    break
                self._remove(folder)
                used -= size
            self._promised += num_bytes
        try:
            yield
        finally:
            with self._lock:
                self._promised -= num_bytes

    def _remove(self, folder: Path) -> None:
        """At once for everybody: moved aside first, so that nobody finds half a version."""
        with (
            contextlib.suppress(FileNotFoundError),
            tempfile.TemporaryDirectory(dir=self._incoming) as scratch,
        ):
            folder.rename(Path(scratch) / "removed")

    def _copies(self) -> Iterator[tuple[float, int, Path]]:
        """(last use, bytes, folder) of each."""
        for folder in self._versions.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                size = sum(file.stat().st_size for file in folder.iterdir())
                yield folder.stat().st_mtime, size, folder

    def _folder(self, prefix: str) -> Path:
        tenant, digest = prefix.split("/")[-2:]
        return self._versions / tenant / digest
