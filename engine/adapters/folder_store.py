"""The embedded object store: a folder of this host, or of a file system that hosts share.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engine.adapters.store import (
    CHUNK_BYTES,
    SEGMENT,
    Content,
    ObjectChanged,
    ObjectMissing,
    Stored,
    check_key,
    is_key,
)
from engine.errors import AdapterUnavailable

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
MAX_ATTEMPTS = 8
INCOMING = ".incoming"


class FolderStore:
    """An `ObjectStore` in a folder of this host, or of a file system that hosts share."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        # Not a key (it begins with a dot), and on the same file system as the objects.
        self._incoming = self._root / INCOMING
        self.url = self._root.absolute().as_uri()
        with self._errors("its root"):
            self._incoming.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def is_made(root: Path) -> bool:
        """Whether the folder has been opened as a store before. Makes nothing."""
        return (root / INCOMING).is_dir()

    def put(self, key: str, source: Path | bytes) -> int:
        target = self._path(key)
        with self._errors(key):
            return self._put(target, source)

    @contextlib.contextmanager
    def open(self, key: str, start: int = 0, etag: str = "") -> Iterator[Content]:
        path = self._path(key)
        with contextlib.ExitStack() as stack:
            with self._errors(key):
                try:
                    file = stack.enter_context(path.open("rb"))
                except ABSENT as error:
                    self._require_root()
                    raise ObjectMissing(f"The object store has no object {key}.") from error
                status = os.fstat(file.fileno())
                found = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
                if etag not in ("", found):
                    raise ObjectChanged(f"Object {key} is no longer what it was.")
                file.seek(start)
            yield Content(status.st_size, found, self._pieces(key, file))

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        with self.open(key, start) as content:
            yield from content.pieces

    def size(self, key: str) -> int | None:
        path = self._path(key)
        with self._errors(key):
            try:
                status = path.stat()
            except ABSENT:
                self._require_root()
                return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str) -> list[str]:
        keys = []
        above = prefix.split("/")[:-1]
        if not all(SEGMENT.fullmatch(s) for s in above):
            return []  # no key begins so
        with self._errors(prefix):
            self._require_root()
            for folder, folders, files in os.walk(self._root.joinpath(*above)):
                if Path(folder) == self._root:
                    folders.remove(self._incoming.name)
                base = Path(folder).relative_to(self._root)
                keys += [(base / name).as_posix() for name in files]
        return sorted(key for key in keys if key.startswith(prefix) and is_key(key))

    def stored(self, prefix: str) -> tuple[Stored, ...]:
        found = []
        for key in self.list(prefix):
            with self._errors(key), contextlib.suppress(*ABSENT):
                status = (self._root / key).stat()
                found.append(Stored(key, status.st_size, status.st_mtime))
        return tuple(found)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors(key):
            path.unlink(missing_ok=True)
            # Folders that are now empty go too; one that isn't ends the loop.
            with contextlib.suppress(OSError):
                for parent in path.relative_to(self._root).parents[:-1]:
                    (self._root / parent).rmdir()

    def drop_unfinished(self, before_s: float, *, dry_run: bool = False) -> int:
        num_dropped = 0
        with self._errors("its unfinished objects"):
            for path in self._incoming.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < before_s:
                        if not dry_run:
                            path.unlink()
                        num_dropped += 1
        return num_dropped

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

    def _pieces(self, key: str, file: BinaryIO) -> Iterator[bytes]:
        with self._errors(key):
            while data := file.read(CHUNK_BYTES):
                yield data

    def _put(self, target: Path, source: Path | bytes) -> int:
        handle, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(handle, "wb") as out:
                if isinstance(source, bytes):
                    out.write(source)
                else:
                    with source.open("rb") as file:
                        while data := file.read(CHUNK_BYTES):
                            out.write(data)
                out.flush()
                os.fchmod(out.fileno(), 0o644)
                os.fsync(out.fileno())
                num_bytes = out.tell()
            self._rename(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
        return num_bytes

    def _rename(self, source: str, target: Path) -> None:
        """Move into place, and let every folder on the way outlive a crash too."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(source, target)
                break
            except (FileNotFoundError, FileExistsError):
                # A delete beside us took a folder on the way that had just become empty.
                if attempt == MAX_ATTEMPTS - 1:
                    raise
        for folder in (target.parent, *target.parent.parents):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if folder == self._root:
                break

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*check_key(key))

    def _require_root(self) -> None:
        """An unmounted store is unreachable, not empty."""
        if not self._incoming.is_dir():
            raise OSError("the store's folder is gone")

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise AdapterUnavailable(
                f"The object store failed at {what}: {reason}. Look at {self._root}'s file system.",
                code="store_unavailable",
                public=f"The object store failed: {reason}. Try again later.",
            ) from error
