"""Which base model this is: what an adapter was published for. Standard library only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from engine.errors import UnsupportedModel
from engine.model.checkpoint import weight_files

_MIB = 1 << 20
_MAX_HEADER = 100 * _MIB


def base_revision(folder: str | Path, configured: str | None = None) -> str:
    """`configured` where the operator gave one, else a sha256 (hex) of what identifies the base.

    It covers config.json and, of every weights file, name, size, header (names, types and shapes
    of all tensors), first MiB and last MiB: two bases of one shape differ in it, and no start has
    to read tens of gigabytes.
    """
    if configured:
        return configured
    digest = hashlib.sha256()
    config = (Path(folder) / "config.json").read_bytes()
    digest.update(len(config).to_bytes(8, "little") + config)
    for path in weight_files(folder):
        name = path.name.encode()
        digest.update(len(name).to_bytes(8, "little") + name)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            digest.update(_header(file, path.name, size))
            file.seek(0)
            digest.update(file.read(_MIB))
            file.seek(max(0, size - _MIB))
            digest.update(file.read(_MIB))
    return digest.hexdigest()


def _header(file: BinaryIO, name: str, size: int) -> bytes:
    """The length and JSON that a safetensors file begins with."""
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(_MAX_HEADER, size - 8):
        raise UnsupportedModel(f"{name} is not a whole safetensors file")
    return prefix + file.read(length)
