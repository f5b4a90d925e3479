"""A safetensors file, read tensor by tensor and never mapped.

Reading with pread means that a file cut short under us is an error, not a SIGBUS, and that no more
than the tensor asked for is in memory. The header is checked in full before any of it is believed.
Standard library only.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 32 << 20
MAX_NAME_CHARS = 500
MAX_DIMENSIONS = 8
MAX_DIMENSION = (1 << 48) - 1
"""Real tensors stay far below these; products of what is above cost minutes."""
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""What files of torch.save begin with: a zip's first entry, or a bare pickle's protocol."""
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}


class TensorFileError(ValueError):
    """The file is not a whole, well-formed safetensors file. Says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """dtype as the file spells it; start and end in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile:
    """An open file. `tensors` by name. Raises TensorFileError, and OSError from the disk."""

    def __init__(self, path: str | Path) -> None:
        # Non-blocking, lest a FIFO of that name hang us; it changes nothing for a regular file.
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise TensorFileError("it is not a regular file")
            self.num_bytes = status.st_size
            self.tensors: Mapping[str, TensorInfo] = self._header()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, name: str) -> bytearray:
        """All bytes of one tensor."""
        info = self.tensors[name]
        return self.read_range(name, 0, info.end - info.start)

    def read_range(self, name: str, offset: int, num_bytes: int) -> bytearray:
        """`num_bytes` of a tensor from `offset`, in bytes from its start."""
        info = self.tensors[name]
        if not 0 <= offset <= offset + num_bytes <= info.end - info.start:
            raise ValueError(f"{name}: bytes {offset}..{offset + num_bytes} are outside it")
        return self._pread(info.start + offset, num_bytes)

    def _pread(self, start: int, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        view, done = memoryview(data), 0
        while done < num_bytes:
            got = os.preadv(self._fd, [view[done:]], start + done)
            if got == 0:
                raise TensorFileError(f"it ends {num_bytes - done} bytes early")
            done += got
        return data

    def _header(self) -> dict[str, TensorInfo]:
        if self.num_bytes == 0:
            raise TensorFileError("it is empty (0 bytes)")
        if self.num_bytes < 8:
            raise TensorFileError("it is too short to be a safetensors file")
        start = self._pread(0, 8)
        length = int.from_bytes(start, "little")
        if length > min(MAX_HEADER_BYTES, self.num_bytes - 8):
            if start.startswith(PICKLES):
                raise TensorFileError(
                    "it looks like a pickle, which can run code when it is read. Save the adapter"
                    " again with PEFT's save_pretrained(..., safe_serialization=True)"
                )
            raise TensorFileError(f"its header claims {length} bytes, more than there can be")
        try:
            header = json.loads(
                self._pread(8, length).decode("utf-8"), object_pairs_hook=unique_keys
            )
        except (ValueError, RecursionError) as error:
            raise TensorFileError(f"its header is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise TensorFileError("its header is not a JSON object")
        header.pop("__metadata__", None)
        tensors = {name: _tensor(name, entry, 8 + length) for name, entry in header.items()}
        self._check_regions(tensors, 8 + length)
        return tensors

    def _check_regions(self, tensors: Mapping[str, TensorInfo], start: int) -> None:
        """Tensors lie end to end: no overlap, no hole, nothing behind the last."""
        for info in sorted(tensors.values(), key=lambda x: (x.start, x.end)):
            if info.start != start:
                raise TensorFileError("its tensors overlap or leave holes")
            start = info.end
        if start != self.num_bytes:
            raise TensorFileError(f"it has {self.num_bytes} bytes; its header describes {start}")


def _tensor(name: str, entry: Any, base: int) -> TensorInfo:
    if len(name) > MAX_NAME_CHARS:
        raise TensorFileError(f"{name[:80]}...: a tensor's name has {len(name)} characters")
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        size = ITEM_BYTES[dtype]
        numbers = [*shape, start, end]
    except KeyError as error:
        raise TensorFileError(f"{name}: no field or dtype {error.args[0]!r}") from error
    except (TypeError, ValueError) as error:
        raise TensorFileError(f"{name}: its header entry is malformed") from error
    if len(shape) > MAX_DIMENSIONS:
        raise TensorFileError(f"{name}: it has {len(shape)} dimensions")
    if any(type(n) is not int or not 0 <= n <= MAX_DIMENSION for n in numbers):
        raise TensorFileError(f"{name}: its shape or offsets are not counts")
    if end - start != math.prod(shape) * size:
        raise TensorFileError(f"{name}: its size does not match its shape and dtype")
    return TensorInfo(dtype, tuple(shape), base + start, base + end)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: a key written twice means two things, so it is an error."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:80]!r} is written twice")
        found[key] = value
    return found
