"""The loader process: fetches versions, verifies them and lays them into shared host memory.

`python -m engine.loader`, started as `engine.child` says. It reads `Load` messages and answers
each with one `LoadDone`. It decides nothing: which version, when and where to is the core's.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from engine.adapters.digest import Manifest, digest
from engine.adapters.disk import DiskTier, Wanted
from engine.adapters.layout import AdapterLayout
from engine.adapters.load_watch import LoadWatch
from engine.adapters.reading import read_version
from engine.adapters.store import (
    MANIFEST,
    TENSORS,
    AdapterCorrupt,
    ObjectMissing,
    ObjectStore,
    object_prefix,
    open_store,
)
from engine.adapters.tensorfile import TensorFile, TensorFileError
from engine.adapters.weights import SERVING_DTYPES, Adapter, pack
from engine.channel import Channel, ChannelClosed
from engine.child import attach
from engine.config import EngineConfig
from engine.errors import AdapterRejected, AdapterUnavailable, LoraplexError
from engine.log_lines import fields, log_as_json
from engine.messages import Discard, Load, LoadDone
from engine.model.modules import ModuleTable
from engine.model.spec import BackboneSpec
from engine.types import AdapterRef

log = logging.getLogger("loraplex.loader")

MAX_MANIFEST_BYTES = 32 << 20
NOT_PUBLISHED = "The stored manifest is not the one published. Publish it again."


class Loader:
    """Loads from any number of threads. `host` is the memory shared with the core.

    A load writes to its own slot alone, [host_offset, host_offset + num_bytes), and holds one
    adapter's stored bytes besides.
    """

    def __init__(
        self,
        config: EngineConfig,
        host: memoryview,
        store: ObjectStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._host = host
        self._store = store
        self._clock = clock
        self._dtype = SERVING_DTYPES[config.model.dtype]
        # Fetches wait for a network, many at once; this is work for processors that steps need.
        self._unpacks = threading.BoundedSemaphore(config.adapters.max_unpacks)

    def load(self, load: Load) -> LoadDone:
        """Never raises. Rejected bytes are permanent; what the store or disk did may pass."""
        watch = LoadWatch(self._clock)
        layout: AdapterLayout | None = None
        error: LoraplexError | None = None
        from_disk = permanent = False
        try:
            layout, from_disk = self._load(load, watch)
        except AdapterRejected as rejected:
            error, permanent = rejected, True
        except LoraplexError as failed:
            error = failed
        except OSError as failed:
            error = AdapterUnavailable(f"Reading the adapter failed: {failed.strerror}.")
        except Exception as failed:
            log.exception("Load of %s failed", load.ref.key, extra=fields(load.ref))
            error = AdapterUnavailable(
                f"Loading the adapter failed: {type(failed).__name__}. See the loader's log.",
                public="Loading the adapter failed. Tell the service's operator.",
            )
        seconds, steps = watch.end()
        _log(load.ref, seconds, from_disk, error)
        return LoadDone(
            load_id=load.load_id,
            key=load.ref.key,
            layout=layout,
            error=None if error is None else error.info(),
            seconds=seconds,
            from_disk=from_disk,
            permanent=permanent,
            steps=steps,
        )

    def discard(self, ref: AdapterRef) -> None:
        """Deletes a retired version's copy on the local disk. Never raises."""
        with contextlib.suppress(LoraplexError, OSError):
            if self._disk is not None:
                self._disk.drop(object_prefix(ref.tenant, ref.digest))

    def _load(self, load: Load, watch: LoadWatch) -> tuple[AdapterLayout, bool]:
        end = load.host_offset + load.num_bytes
        if not 0 <= load.host_offset < end <= self._host.nbytes:
            raise ValueError(f"slot {load.host_offset}..{end} of {self._host.nbytes} bytes")
        revision = self._config.model.revision
        if revision and load.ref.base_revision != revision:
            raise AdapterRejected(
                "The adapter was published for another revision of the base. Publish it again."
            )
        adapter, from_disk = self._read(load.ref, watch)
        layout = adapter.layout()
        self._check_rank(layout)
        if layout.num_elements * self._dtype.itemsize != load.num_bytes:
            raise AdapterRejected(
                f"The adapter takes {layout.num_elements} elements, not the"
                f" {load.ref.num_elements} of its record. Publish it again."
            )
        with self._turn(watch):
            watch.begin("repack")
            pack(adapter, layout, self._dtype, self._host[load.host_offset : end])
        return layout, from_disk

    def _check_rank(self, layout: AdapterLayout) -> None:
        """A GPU keeps workspaces for ranks up to a maximum."""
        rank = max(block.rank for block in layout.blocks)
        limit = self._config.adapters.max_rank
        if self._config.model.device == "cuda" and rank > limit:
            raise AdapterRejected(
                f"The adapter has a module of rank {rank}; this service takes {limit} at most."
                " Train it with a lower rank, or raise adapters.max_rank."
            )

    @contextlib.contextmanager
    def _turn(self, watch: LoadWatch) -> Iterator[None]:
        """A place among those who work on processors."""
        watch.begin("turn")
        with self._unpacks:
            yield

    def _read(self, ref: AdapterRef, watch: LoadWatch) -> tuple[Adapter, bool]:
        """The weights, verified, and whether they were on the local disk already."""
        prefix = object_prefix(ref.tenant, ref.digest)
        if self._disk is None:
            return self._open(ref, self._in_place(prefix), watch), False
        folder = self._disk.find(prefix)
        if folder is not None:
            try:
                return self._open(ref, folder, watch), True
            except (AdapterCorrupt, FileNotFoundError):
                # It is bad, or was evicted under us.
                log.warning(
                    "Fetching %s again: its copy on disk can't be used", ref.key, extra=fields(ref)
                )
                self._disk.drop(prefix)
        try:
            return self._fetch(ref, prefix, self._disk, watch), False
        except AdapterCorrupt as error:
            # Damaged on its way, or a copy that went on from damaged bytes: that passes.
            log.warning("Fetching %s again: %s", ref.key, error.message, extra=fields(ref))
            return self._fetch(ref, prefix, self._disk, watch), False

    def _in_place(self, prefix: str) -> Path:
        """The folder of a store that is one. Raises ObjectMissing."""
        if None in (self._store.size(f"{prefix}/{part}") for part in (MANIFEST, TENSORS)):
            raise ObjectMissing(
                f"The object store has no whole version at {prefix}. Publish it again."
            )
        path = self._store.local_path(f"{prefix}/{MANIFEST}")
        assert path is not None
        return path.parent

    def _fetch(self, ref: AdapterRef, prefix: str, disk: DiskTier, watch: LoadWatch) -> Adapter:
        """One GET of the manifest, one of the tensors, or of what is still wanting of them."""
        watch.begin("fetch")
        with self._store.open(f"{prefix}/{MANIFEST}") as content:
            if content.num_bytes > MAX_MANIFEST_BYTES:
                raise AdapterCorrupt(NOT_PUBLISHED)
            manifest = b"".join(content.pieces)
        _check_digest(ref, manifest)
        wanted = Wanted(prefix, TENSORS, ref.num_bytes, {MANIFEST: manifest})
        return disk.fill(self._store, wanted, lambda folder: self._open(ref, folder, watch))

    def _open(self, ref: AdapterRef, folder: Path, watch: LoadWatch) -> Adapter:
        """The version's files in `folder`, every byte verified."""
        with self._turn(watch):
            watch.begin("parse")
            return self._verified(ref, folder, watch)

    def _verified(self, ref: AdapterRef, folder: Path, watch: LoadWatch) -> Adapter:
        with (folder / MANIFEST).open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES)
        _check_digest(ref, data)
        try:
            manifest = Manifest.from_bytes(data)
        except ValueError as error:
            raise AdapterUnavailable(f"This release can't read the adapter: {error}.") from error
        try:
            with TensorFile(folder / TENSORS) as tensors:
                watch.begin("verify")
                return read_version(tensors, manifest, self._table)
        except TensorFileError as error:
            raise AdapterCorrupt(
                f"The stored adapter can't be read: {error}. Publish it again."
            ) from error

    @functools.cached_property
    def _table(self) -> ModuleTable:
        """Read at the first load: a replica on the fake device may have no model."""
        return BackboneSpec.load(self._config.model.path).modules

    @functools.cached_property
    def _disk(self) -> DiskTier | None:
        """None where the store's files are read in place."""
        store = self._config.store
        if self._store.local_path("adapters") is not None:
            return None
        return DiskTier(store.disk_path, store.disk_bytes)


def _log(ref: AdapterRef, seconds: float, from_disk: bool, error: LoraplexError | None) -> None:
    if error is None:
        told = fields(ref, seconds=round(seconds, 6), from_disk=from_disk)
        log.info("loaded %s", ref.key, extra=told)
    else:
        told = fields(ref, seconds=round(seconds, 6), code=error.info().code)
        log.warning("loading %s failed: %s", ref.key, error.message, extra=told)


def _check_digest(ref: AdapterRef, manifest: bytes) -> None:
    if digest(manifest) != ref.digest:
        raise AdapterCorrupt(NOT_PUBLISHED)


def serve(loader: Loader, channel: Channel, max_loads: int) -> None:
    """Answer loads, `max_loads` at once, until the parent closes the channel."""

    def answer(load: Load) -> None:
        with contextlib.suppress(ChannelClosed):
            channel.send(loader.load(load))

    threads = ThreadPoolExecutor(max_loads, thread_name_prefix="load")
    while not channel.closed:
        for message in channel.take():
            if isinstance(message, Discard):
                threads.submit(loader.discard, message.ref)
            else:
                threads.submit(answer, message)
        channel.wait()
    threads.shutdown(wait=False, cancel_futures=True)


def main() -> int:
    log_as_json("loader")
    torch.set_num_threads(1)
    try:
        parent = attach()
        config = parent.config
        loader = Loader(
            config, memoryview(parent.host), open_store(config.store.url, config.store.options)
        )
        serve(loader, parent.channel, config.adapters.max_loads)
    except ChannelClosed:
        return 0
    except LoraplexError as error:
        log.error("The loader can't start: %s", error.message)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # No interpreter shutdown: a load still in progress must not hold up the end.
    os._exit(status)
