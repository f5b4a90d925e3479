"""Where adapter objects are kept: bytes under a key, seen whole or not at all.

Standard library only. Calls block; an event loop makes them from a thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from engine.errors import AdapterUnavailable, LoraplexError
from engine.types import NAME

CHUNK_BYTES = 1 << 20
SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"[0-9a-f]{64}")
TENSORS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
MANIFEST = "manifest.json"
"""Written last: a version is there once its manifest is."""
ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class ObjectMissing(AdapterUnavailable):
    """There is no such object: said only when the store itself says so."""

    code = "object_missing"


class ObjectStore(Protocol):
    """One conformance suite holds every backend to this.

    Keys are segments of letters, digits, '.', '_' and '-' joined by '/'; another key is a
    ValueError. Every call raises AdapterUnavailable when the store can't be reached, refuses us or
    fails; ObjectMissing, a kind of it, only where the object is truly absent.
    """

    url: str

    def put(self, key: str, source: Path | bytes) -> int:
        """Store bytes, or a file's, in place of what was there; answers how many. Readers see
        the old object or the new one, never a part, and it survives a crash once this returns."""
        ...

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        """The object's bytes from `start`, in pieces; a cut read goes on from what it has."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes of the object; None where there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys that begin with `prefix`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that isn't there is no error."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The object as a file to read in place; None where the store has none."""
        ...


def open_store(url: str) -> ObjectStore:
    """Open the store that `url` names: `file:///absolute/folder` (made if it isn't there).

    Raises LoraplexError for a scheme that this release can't serve.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise LoraplexError(
                f"store url {url!r} is not an absolute path. Write file:///path/to/folder."
            )
        return FolderStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        raise LoraplexError("This release has no S3 store yet. Use file:///path/to/folder.")
    raise LoraplexError(f"store url {url!r} has no known scheme. Use file:///path/to/folder.")


def object_prefix(tenant: str, digest: str) -> str:
    """Where a version's objects lie. Derived, never taken from anybody's word: raises ValueError
    for what is no tenant or digest."""
    if not NAME.fullmatch(tenant) or not DIGEST.fullmatch(digest):
        raise ValueError(f"{tenant!r}/{digest!r} names no adapter version")
    return f"adapters/{tenant}/{digest}"


class FolderStore:
    """An `ObjectStore` in a folder of this host, or of a file system that hosts share."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        # Not a key (it begins with a dot), and on the same file system as the objects.
        self._incoming = self._root / ".incoming"
        self.url = self._root.absolute().as_uri()
        with self._errors("its root"):
            self._incoming.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, source: Path | bytes) -> int:
        target = self._path(key)
        with self._errors(key):
            return self._put(target, source)

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        path = self._path(key)
        with self._errors(key):
            try:
                file = path.open("rb")
            except ABSENT as error:
                self._require_root()
                raise ObjectMissing(f"The object store has no object {key}.") from error
            with file:
                file.seek(start)
                while data := file.read(CHUNK_BYTES):
                    yield data

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
        with self._errors(prefix):
            self._require_root()
            for folder, folders, files in os.walk(self._root):
                if Path(folder) == self._root:
                    folders.remove(self._incoming.name)
                base = Path(folder).relative_to(self._root)
                keys += [(base / name).as_posix() for name in files]
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors(key):
            path.unlink(missing_ok=True)
            # Folders that are now empty go too; one that isn't ends the loop.
            with contextlib.suppress(OSError):
                for parent in path.relative_to(self._root).parents[:-1]:
                    (self._root / parent).rmdir()

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

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
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(source, target)
        except FileNotFoundError:  # a delete beside us took the folder that had just become empty
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, target)
        for folder in (target.parent, *target.parent.parents):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if folder == self._root:
                break

    def _path(self, key: str) -> Path:
        segments = key.split("/")
        if not all(SEGMENT.fullmatch(s) for s in segments):
            raise ValueError(f"{key!r} is no key")
        return self._root.joinpath(*segments)

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
                f"The object store failed at {what}: {reason}.", code="store_unavailable"
            ) from error
