"""Copies in the making: folders that one loader at a time fills, and the next one goes on with.

A folder has the version's files in `files/`, what names the object that they are of in `etag`, and
`lock`, which whoever works at it holds; a process that dies lets go of it. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STALE_S = 86_400.0
"""Older ones that nobody works at have been forgotten."""
ASIDE = "removed-"


class Partials:
    """Below `root`, which processes of one host may share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        stale_s = time.time() - STALE_S
        for folder in root.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if folder.stat().st_mtime < stale_s:
                    self.remove(folder)

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[Partial]:
        """The partial copy of that name, empty at first, for this thread alone: waits for whoever
        works at it."""
        folder = self._root / name
        while True:
            # Not `exist_ok`: that is an error where the folder goes while it is looked at.
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            try:
                lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
            except FileNotFoundError:  # removed beside us
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_of(folder, lock):
                    continue
                (folder / "files").mkdir(exist_ok=True)
                os.utime(folder)
                yield Partial(folder)
                return
            finally:
                os.close(lock)

    def idle(self) -> Iterator[tuple[float, int, Path]]:
        """(last use, bytes, folder) of each that nobody works at, locked until the next one is
        asked for. That may change afterwards: `remove` looks again."""
        for folder in self._root.iterdir():
            if folder.name.startswith(ASIDE):
                continue
            with contextlib.suppress(FileNotFoundError), _lock(folder) as free:
                if free:
                    sizes = (file.stat().st_size for file in (folder / "files").glob("*"))
                    yield folder.stat().st_mtime, sum(sizes), folder

    def remove(self, folder: Path) -> bool:
        """Unless somebody works at it."""
        with _lock(folder) as free:
            if free:
                remove_folder(folder, self._root)
            return free


class Partial:
    """One, claimed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files = folder / "files"

    def have(self, part: str) -> tuple[int, str]:
        """(bytes, etag) of the object that this part of it is of; (0, "") for none."""
        try:
            return (self.files / part).stat().st_size, (self._folder / "etag").read_text()
        except FileNotFoundError:
            return 0, ""

    def begin(self, part: str, etag: str) -> None:
        """Nothing of it, and of that object from now on."""
        (self.files / part).unlink(missing_ok=True)
        (self._folder / "etag").write_text(etag)

    def discard(self) -> None:
        """All of it, its lock included: who waits for it makes it anew."""
        remove_folder(self._folder, self._folder.parent)


def remove_folder(folder: Path, root: Path) -> None:
    """At once for everybody: moved aside first, to below `root`, so that nobody finds half of it.
    One that is gone already is no error."""
    scratch = tempfile.mkdtemp(prefix=ASIDE, dir=root)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(Path(scratch) / "folder")
    shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Whether it could be had: nobody works at this folder, and nobody begins to meanwhile."""
    try:
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    except (FileNotFoundError, NotADirectoryError):
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield _is_of(folder, lock)
    except BlockingIOError:
        yield False
    finally:
        os.close(lock)


def _is_of(folder: Path, lock: int) -> bool:
    """The lock is still the folder's: it was not removed while we waited."""
    try:
        return os.path.samestat(os.fstat(lock), (folder / "lock").stat())
    except FileNotFoundError:
        return False
