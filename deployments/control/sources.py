"""Where the files of an adapter that is to be published come from.

A folder below the import root, a prefix of the tenant's own in the import store, or an upload that
an ingress has put into the object store. What a caller names never leads outside of these.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployments.control.added_tokens import MAX_TOKENIZER_BYTES
from deployments.control.import_folder import AdapterFiles, ImportFolder, missing_file
from deployments.control.publish_order import Source, too_large, upload_prefix
from engine.adapters.peft import MAX_CONFIG_BYTES
from engine.adapters.store import (
    CONFIG,
    SEGMENT,
    TENSORS,
    TOKENIZER_FILES,
    ObjectMissing,
    ObjectStore,
)
from engine.errors import InvalidRequest, LoraplexError, NotFound

logger = logging.getLogger(__name__)
IMPORTS = "imports"


class Sources:
    """imports: None, no import store is configured. max_bytes: of an adapter's tensors."""

    def __init__(
        self, folder: ImportFolder, store: ObjectStore, imports: ObjectStore | None, max_bytes: int
    ) -> None:
        self._folder = folder
        self._store = store
        self._imports = imports
        self._max_bytes = max_bytes

    @contextmanager
    def files(self, source: Source, tenant: str) -> Iterator[AdapterFiles]:
        """The adapter's files, to be read until the context ends.

        Raises InvalidRequest, NotFound, TooLarge, AdapterRejected, AdapterUnavailable.
        """
        if source.folder is not None:
            folder = self._folder.of_tenant(tenant) if source.own else self._folder
            yield folder.files(source.folder)
        elif source.prefix is not None:
            prefix = import_prefix(source.prefix, tenant)
            if self._imports is None:
                raise InvalidRequest(
                    "This service has no import store: its operator must set publish.import_store."
                    " Or upload the adapter.",
                    code="no_import_store",
                    param="prefix",
                )
            with self._copied(self._imports, prefix) as files:
                yield files
        else:
            assert source.upload is not None
            with self._copied(self._store, upload_prefix(tenant, source.upload)) as files:
                yield files

    def drop(self, source: Source, tenant: str) -> None:
        """An upload is no longer needed. What the store refuses is logged and left to the sweep."""
        if source.upload is None:
            return
        try:
            for key in self._store.list(upload_prefix(tenant, source.upload) + "/"):
                self._store.delete(key)
        except LoraplexError as error:
            logger.warning("upload %s of %s stays: %s", source.upload, tenant, error.message)

    @contextmanager
    def _copied(self, store: ObjectStore, prefix: str) -> Iterator[AdapterFiles]:
        with tempfile.TemporaryDirectory(prefix="loraplex-") as scratch:
            folder = Path(scratch)
            limits = {CONFIG: MAX_CONFIG_BYTES, TENSORS: self._max_bytes}
            for name, max_bytes in limits.items():
                if not _copy(store, prefix, folder / name, max_bytes):
                    raise _missing(store, prefix, name)
            there = [
                name
                for name in TOKENIZER_FILES
                if _copy(store, prefix, folder / name, MAX_TOKENIZER_BYTES)
            ]
            yield AdapterFiles(
                folder / CONFIG, folder / TENSORS, {name: folder / name for name in there}
            )


def _copy(store: ObjectStore, prefix: str, path: Path, max_bytes: int) -> bool:
    """The object of `path`'s name, to `path`. False: there is none. Raises TooLarge."""
    num_bytes = 0
    try:
        with path.open("wb") as file:
            for piece in store.read(f"{prefix}/{path.name}"):
                num_bytes += len(piece)
                if num_bytes > max_bytes:
                    raise too_large(path.name, max_bytes)
                file.write(piece)
    except ObjectMissing:
        return False
    return True


def _missing(store: ObjectStore, prefix: str, name: str) -> LoraplexError:
    there = [key.removeprefix(f"{prefix}/") for key in store.list(f"{prefix}/")]
    if there:
        return missing_file(name, there)
    return NotFound(
        "There is nothing under that prefix. Put the adapter's two files there first.",
        param="prefix",
    )


def import_prefix(prefix: str, tenant: str) -> str:
    """The key prefix in the import store that a tenant means by `prefix`: from imports/<tenant>, or
    whole. Raises InvalidRequest for any other place, whether or not anything is there."""
    own = f"{IMPORTS}/{tenant}/"
    segments = prefix.removeprefix(own).rstrip("/").split("/")
    if prefix.startswith(f"{IMPORTS}/") and not prefix.startswith(own):
        segments = []
    if not segments or len(prefix) > 1000 or not all(SEGMENT.fullmatch(s) for s in segments):
        raise InvalidRequest(
            f"The prefix is not below {own} of this service's import store.",
            code="outside_imports",
            param="prefix",
        )
    return own + "/".join(segments)
