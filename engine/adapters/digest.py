"""The canonical manifest of an adapter version; its sha256 is the version's digest.

It holds what the arithmetic depends on and nothing else: a format version, rank and scale of each
module (the config's patterns already applied, so no reader evaluates them again), and of each
tensor its name, dtype, shape and sha256. So the order of a file or of target_modules, dropout, or
a comment can't change a digest. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ManifestModule:
    """`scale` multiplies B A x + bias."""

    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class ManifestTensor:
    """dtype as safetensors spells it; sha256 (hex) of its bytes as stored."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Modules by path in the Hugging Face model, tensors by their name in the file."""

    modules: Mapping[str, ManifestModule]
    tensors: Mapping[str, ManifestTensor]

    def to_bytes(self) -> bytes:
        """Canonical: equal manifests give equal bytes."""
        value = {
            "format": FORMAT,
            "modules": {
                name: {"rank": m.rank, "scale": float(m.scale)} for name, m in self.modules.items()
            },
            "tensors": {
                name: {"dtype": t.dtype, "shape": list(t.shape), "sha256": t.sha256}
                for name, t in self.tensors.items()
            },
        }
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")

    @property
    def digest(self) -> str:
        return digest(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Inverse of `to_bytes`. Raises ValueError for anything else, a later format included."""
        try:
            value: dict[str, Any] = json.loads(data)
            if value["format"] != FORMAT:
                raise ValueError(f"manifest format {value['format']} is not {FORMAT}")
            return cls(
                {n: ManifestModule(m["rank"], m["scale"]) for n, m in value["modules"].items()},
                {
                    n: ManifestTensor(t["dtype"], tuple(t["shape"]), t["sha256"])
                    for n, t in value["tensors"].items()
                },
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no manifest ({error!r})") from error


def digest(data: bytes | bytearray | memoryview) -> str:
    """sha256, hex."""
    return hashlib.sha256(data).hexdigest()
