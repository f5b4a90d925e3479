"""Where adapter objects are kept: bytes under a key, seen whole or not at all.

What every backend keeps to, and which one a URL names. Standard library only. Calls block; an event
loop makes them from a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from engine.config import StoreOptions
from engine.errors import AdapterUnavailable, LoraplexError
from engine.types import NAME

CHUNK_BYTES = 1 << 20
SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"[0-9a-f]{64}")
TENSORS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
MANIFEST = "manifest.json"
"""Written last: a version is there once its manifest is."""
TOKENIZER_FILES = ("added_tokens.json", "tokenizer_config.json", "tokenizer.json")
"""Files beside an adapter's, in which releases of transformers have written added tokens. They are
read at publish, and not stored with a version."""
KNOWN_URLS = "file:///path/to/folder or s3://bucket/prefix"


class ObjectMissing(AdapterUnavailable):
    """There is no such object: said only when the store itself says so."""

    code = "object_missing"
    default_public = "The adapter's stored files are gone. Publish it again."
    default_retry_after_s = None


class ObjectChanged(AdapterUnavailable):
    """The object is no longer the one that an etag names: begin it again."""

    code = "object_changed"
    default_public = "The adapter's stored files changed while they were read. Try again."


class AdapterCorrupt(AdapterUnavailable):
    """The stored bytes are not those that were published."""

    code = "adapter_corrupt"
    default_retry_after_s = None


@dataclass(frozen=True, slots=True)
class Content:
    """An object that is being read.

    num_bytes  of the whole object
    etag       names these very bytes; for the same bytes put again it may be another
    pieces     its bytes from where it was opened, each no longer than `CHUNK_BYTES`
    """

    num_bytes: int
    etag: str
    pieces: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as a listing tells of it. modified_s: Unix time of its last put, by the store's
    clock."""

    key: str
    num_bytes: int
    modified_s: float


class ObjectStore(Protocol):
    """One conformance suite holds every backend to this.

    Keys are segments of letters, digits, '.', '_' and '-' joined by '/'; another key is a
    ValueError. Every call raises AdapterUnavailable when the store can't be reached, refuses us or
    fails, with a code for each cause; ObjectMissing, a kind of it, only where the object is truly
    absent.
    """

    url: str
    """Without options: what a version's record says of where its objects lie."""

    def put(self, key: str, source: Path | bytes) -> int:
        """Store bytes, or a file's, in place of what was there; answers how many. Readers see
        the old object or the new one, never a part, and it survives a crash once this returns."""
        ...

    def open(self, key: str, start: int = 0, etag: str = "") -> AbstractContextManager[Content]:
        """The object, to be read from byte `start` (beyond its end there is nothing). A read that
        is cut goes on from what it has, of the same object. Raises ObjectChanged where `etag` is
        given and no longer names it."""
        ...

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        """As `open`, for who wants nothing but the bytes."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes of the object; None where there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys that begin with `prefix`, sorted. What somebody else has put under what is no key is
        left out."""
        ...

    def stored(self, prefix: str) -> tuple[Stored, ...]:
        """What `list` names, and more of each."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that isn't there is no error."""
        ...

    def drop_unfinished(self, before_s: float, *, dry_run: bool = False) -> int:
        """Remove what puts that began before that Unix time have left half-written, as a writer
        that is killed does; answers how many. Nobody ever saw them as objects. dry_run: only
        count them."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The object as a file to read in place; None where the store has none."""
        ...


def open_store(url: str, options: StoreOptions | None = None) -> ObjectStore:
    """Open the store that `url` names.

    file:///absolute/folder   made if it isn't there
    s3://bucket/prefix        see `engine.adapters.s3_address`; `options` are its limits

    Raises LoraplexError for a URL that names none. Each backend is imported only where it is used.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        from engine.adapters.folder_store import FolderStore  # noqa: PLC0415

        if parts.netloc or not parts.path.startswith("/"):
            raise LoraplexError(
                f"store url {url!r} is not an absolute path. Write file:///path/to/folder."
            )
        return FolderStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        from engine.adapters.s3_address import S3Address  # noqa: PLC0415
        from engine.adapters.s3_store import S3Store  # noqa: PLC0415

        return S3Store(S3Address.parse(url), options or StoreOptions())
    raise LoraplexError(f"The store's url has no known scheme. Write {KNOWN_URLS}.")


def object_prefix(tenant: str, digest: str) -> str:
    """Where a version's objects lie. Derived, never taken from anybody's word: raises ValueError
    for what is no tenant or digest."""
    if not NAME.fullmatch(tenant) or not DIGEST.fullmatch(digest):
        raise ValueError(f"{tenant!r}/{digest!r} names no adapter version")
    return f"adapters/{tenant}/{digest}"


def is_key(key: str) -> bool:
    return all(SEGMENT.fullmatch(segment) for segment in key.split("/"))


def check_key(key: str) -> list[str]:
    """Its segments. Raises ValueError for what is no key."""
    segments = key.split("/")
    if not is_key(key):
        raise ValueError(f"{key!r} is no key")
    return segments
