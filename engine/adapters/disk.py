"""The disk tier: copies of stored versions in a folder of this host, within a budget of bytes.

The folder is the only state, so it outlives its process. Replicas of one host may share it: a
version appears by one rename once it is verified, is used through open files, and the one not used
for longest goes first. A copy that was interrupted is gone on with. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.adapters.partials import Partial, Partials, remove_folder
from engine.adapters.store import AdapterCorrupt, ObjectChanged, ObjectStore
from engine.errors import AdapterUnavailable

T = TypeVar("T")
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a copy is made of.

    prefix     the version's, of which the last two segments are tenant and digest
    large      the one object worth going on with, and its bytes
    num_bytes  of `large`, as its record says
    small      other files, by their name
    """

    prefix: str
    large: str
    num_bytes: int
    small: Mapping[str, bytes]

    @property
    def total_bytes(self) -> int:
        return self.num_bytes + sum(len(data) for data in self.small.values())


class DiskTier:
    """Below `root`, at most `max_bytes` of finished and interrupted copies, and those that this
    process is making."""

    def __init__(self, root: str | Path, max_bytes: int) -> None:
        self._versions = Path(root) / "versions"
        self._incoming = Path(root) / "incoming"
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._promised = 0
        self._sizes: dict[Path, int] = {}
        self._versions.mkdir(parents=True, exist_ok=True)
        self._partials = Partials(self._incoming)

    def find(self, prefix: str) -> Path | None:
        """The folder of a version's copy, which counts as used now; None where there is none."""
        folder = self._folder(prefix)
        try:
            os.utime(folder)
        except FileNotFoundError:
            return None
        return folder

    def fill(self, store: ObjectStore, wanted: Wanted, verify: Callable[[Path], T]) -> T:
        """Copy a version from `store`. `verify(folder)` reads it there; what it returns is the
        answer, and once it has returned others see the copy. Where it raises, the copy is gone.

        What was fetched before an error of the store, or the end of this process, is kept and gone
        on with. Raises what store and `verify` raise, OSError, AdapterCorrupt for an object of
        another length, and AdapterUnavailable for more than the budget.
        """
        if wanted.total_bytes > self._max_bytes:
            raise AdapterUnavailable(
                f"The adapter has {wanted.total_bytes} bytes; the disk tier may hold"
                f" {self._max_bytes}. Raise disk_bytes.",
                code="disk_too_small",
            )
        folder = self._folder(wanted.prefix)
        with self._partials.claim(f"{folder.parent.name}@{folder.name}") as partial:
            if self.find(wanted.prefix) is not None:  # another replica was faster
                with contextlib.suppress(FileNotFoundError, AdapterCorrupt):
                    return verify(folder)
                self.drop(wanted.prefix)
            with self._room(wanted.total_bytes):
                _copy(store, wanted, partial)
                try:
                    verified = verify(partial.files)
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    partial.files.rename(folder)
                finally:
                    partial.discard()
                return verified

    def drop(self, prefix: str) -> None:
        """Forget a copy. Files of it that are open stay readable."""
        remove_folder(self._folder(prefix), self._incoming)

    def num_bytes(self) -> int:
        """Of the finished copies, as they are now."""
        self._sizes = {}
        return sum(size for _, size, _ in self._copies())

    def check(self) -> None:
        """Assert the budget, where no other process fills this folder."""
        num_idle = sum(size for _, size, _ in self._partials.idle())
        assert self.num_bytes() + num_idle + self._promised <= self._max_bytes
        assert self._promised >= 0

    @contextlib.contextmanager
    def _room(self, num_bytes: int) -> Iterator[None]:
        """Evict until `num_bytes` more fit, waiting for copies that others of this process make,
        and hold them while the copy is made."""
        with self._changed:
            while not self._evict(num_bytes):
                # Another process may have what would have gone, and nobody tells us when it ends.
                self._changed.wait(POLL_S)
            self._promised += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._promised -= num_bytes
                self._changed.notify_all()

    def _evict(self, num_bytes: int) -> bool:
        """Whether that many bytes are free now."""
        found = sorted([*self._copies(), *self._partials.idle()])
        used = sum(size for _, size, _ in found) + self._promised
        for _, size, folder in found:
            if used + num_bytes <= self._max_bytes:
                break
            if folder.parent == self._incoming:
                gone = self._partials.remove(folder)
            else:
                remove_folder(folder, self._incoming)
                gone = True
            used -= size if gone else 0
        return used + num_bytes <= self._max_bytes

    def _copies(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, folder) of each. A copy never changes its size, so its files are looked
        at once."""
        copies = []
        for folder in self._versions.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                last_use_s = folder.stat().st_mtime
                size = self._sizes.get(folder)
                if size is None:
                    size = sum(file.stat().st_size for file in folder.iterdir())
                copies.append((last_use_s, size, folder))
        self._sizes = {folder: size for _, size, folder in copies}
        return copies

    def _folder(self, prefix: str) -> Path:
        tenant, digest = prefix.split("/")[-2:]
        return self._versions / tenant / digest


def _copy(store: ObjectStore, wanted: Wanted, partial: Partial) -> None:
    for name, data in wanted.small.items():
        (partial.files / name).write_bytes(data)
    start, etag = partial.have(wanted.large)
    try:
        _fetch(store, wanted, partial, start if etag else 0, etag)
    except ObjectChanged:
        _fetch(store, wanted, partial, 0, "")


def _fetch(store: ObjectStore, wanted: Wanted, partial: Partial, start: int, etag: str) -> None:
    with store.open(f"{wanted.prefix}/{wanted.large}", start, etag) as content:
        if content.num_bytes != wanted.num_bytes:
            raise AdapterCorrupt(
                f"The stored {wanted.large} has {content.num_bytes} bytes, not the"
                f" {wanted.num_bytes} that were published. Publish it again."
            )
        if not start:
            partial.begin(wanted.large, content.etag)
        with (partial.files / wanted.large).open("ab", buffering=0) as file:
            for data in content.pieces:
                file.write(data)
