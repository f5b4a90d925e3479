"""Folders that may be published: those below one root, whatever links and dots are in their way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.adapters.peft import MAX_CONFIG_BYTES
from engine.adapters.store import CONFIG, TENSORS, TOKENIZER_FILES
from engine.errors import AdapterRejected, InvalidRequest, NotFound

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The two files of a PEFT folder, links resolved; and by name those of TOKENIZER_FILES that are
    there."""

    config: Path
    tensors: Path
    tokenizer: Mapping[str, Path] = field(default_factory=dict)

    def config_bytes(self) -> bytes:
        """At most a byte more than any config may have."""
        try:
            with self.config.open("rb") as file:
                return file.read(MAX_CONFIG_BYTES + 1)
        except OSError as error:
            raise InvalidRequest(
                f"{CONFIG} can't be read: {error.strerror}.", param="folder"
            ) from error


class ImportFolder:
    """`root` None: nothing may be published from a folder. called: the root, to who may not know
    where it is."""

    def __init__(self, root: Path | None, called: str = "this service's import root") -> None:
        self._root = None if root is None else root.resolve()
        self._called = called

    def of_tenant(self, tenant: str) -> ImportFolder:
        """What the tenant itself may publish from: the folder of its name below the root."""
        root = None if self._root is None else self._root / tenant
        return ImportFolder(root, f"the folder {tenant}/ of {self._called}")

    def files(self, folder: str) -> AdapterFiles:
        """The adapter in `folder`, given from the root or in full.

        Raises InvalidRequest for what lies elsewhere (in the same words whether or not anything is
        there), NotFound for a missing folder, AdapterRejected for one without an adapter.
        """
        if self._root is None:
            raise InvalidRequest(
                "This service has no import root: its operator must set import_root. Or upload the"
                " adapter.",
                code="no_import_root",
                param="folder",
            )
        path = self._inside(self._root / folder)
        if path is None:
            raise InvalidRequest(
                f"The folder is not below {self._called}, links followed. Name one below it, or"
                " upload the adapter.",
                code="outside_import_root",
                param="folder",
            )
        try:
            if not path.is_dir():
                raise NotFound(f"There is no such folder below {self._called}.", param="folder")
            there = [n for n in TOKENIZER_FILES if os.path.lexists(path / n)]
            tokenizer = {name: self._file(path, name) for name in there}
            return AdapterFiles(self._file(path, CONFIG), self._file(path, TENSORS), tokenizer)
        except OSError as error:
            raise InvalidRequest(
                f"The folder can't be read: {error.strerror}.", param="folder"
            ) from error

    def _file(self, folder: Path, name: str) -> Path:
        path = self._inside(folder / name)
        if path is None:
            raise InvalidRequest(
                f"{name} is a link that leads out of {self._called}. Put the file itself into the"
                " folder (cp -L), or upload the adapter.",
                code="outside_import_root",
                param="folder",
            )
        if path.is_file():
            return path
        raise missing_file(name, (p.name for p in folder.iterdir()))

    def _inside(self, path: Path) -> Path | None:
        """`path` with links resolved; None where that is not below the root."""
        assert self._root is not None
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL
            return None
        return resolved if resolved.is_relative_to(self._root) else None


def missing_file(name: str, there: Iterable[str]) -> AdapterRejected:
    """Why an adapter without the file `name` is refused; `there`: the names of its files."""
    pickles = sorted(n for n in there if n.endswith(PICKLES))
    if pickles:
        return AdapterRejected(
            f"{pickles[0][:80]} is a pickle, which can run code when it is read. Save the"
            " adapter again with PEFT's save_pretrained(..., safe_serialization=True).",
            code="adapter_is_pickle",
            param="folder",
        )
    return AdapterRejected(
        f"The folder has no file {name}. Publish a folder that PEFT saved.",
        code="adapter_incomplete",
        param="folder",
    )
