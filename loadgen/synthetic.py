"""Synthetic LoRA adapters in PEFT's format, for any base folder, without torch."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.workloads.draws import stream

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MODULE = re.compile(r"(?P<path>.*\.layers\.\d+\..*\.(?P<module>[a-z_]+))\.weight")


class BaseError(Exception):
    """A base folder, or modules of it, that no adapter can be made for."""


@dataclass(frozen=True, slots=True)
class Base:
    """What of a base model an adapter must fit.

    name    as an adapter's config names it
    shapes  (out, in) of each projection in a layer, by its full name without `.weight`
    """

    name: str
    shapes: Mapping[str, tuple[int, int]]

    @classmethod
    def read(cls, folder: Path, name: str = "") -> Base:
        """From the headers of its safetensors files. name: the folder's by default. Raises
        BaseError."""
        shapes: dict[str, tuple[int, int]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            for tensor, entry in _header(path).items():
                found = _MODULE.fullmatch(tensor)
                if found and len(entry.get("shape", ())) == 2:
                    out, inner = entry["shape"]
                    shapes[found["path"]] = (out, inner)
        if not shapes:
            raise BaseError(
                f"{folder} has no *.safetensors with layers. Name the folder of the base model."
            )
        return cls(name or folder.resolve().name, shapes)

    def targets(self, modules: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Those of `shapes` that end in one of `modules`. Raises BaseError for one there isn't."""
        ends = {path.rpartition(".")[2] for path in self.shapes}
        for module in modules:
            if module not in ends:
                raise BaseError(f"{self.name} has no {module}. It has {', '.join(sorted(ends))}.")
        return {p: s for p, s in self.shapes.items() if p.rpartition(".")[2] in modules}


def make_adapter(base: Base, rank: int, modules: Sequence[str], seed: int) -> dict[str, bytes]:
    """The two files of an adapter, by name; other seeds give other weights.

    A is uniform as PEFT begins it, B as large as a trained one's, so that the answers change; fp16.
    Raises BaseError.
    """
    random = stream(seed, "adapter", rank)
    tensors: dict[str, NDArray[np.float16]] = {}
    for path, (out, inner) in base.targets(modules).items():
        bound = 1 / np.sqrt(inner)
        a = random.uniform(-bound, bound, (rank, inner))
        b = random.standard_normal((out, rank)) * (0.02 / np.sqrt(rank))
        tensors[f"base_model.model.{path}.lora_A.weight"] = a.astype(np.float16)
        tensors[f"base_model.model.{path}.lora_B.weight"] = b.astype(np.float16)
    config = {
        "base_model_name_or_path": base.name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(modules),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    return {CONFIG: json.dumps(config, indent=2).encode(), TENSORS: _safetensors(tensors)}


def _safetensors(tensors: Mapping[str, NDArray[np.float16]]) -> bytes:
    """The format: 8 bytes of the header's length, JSON padded to 8 bytes, then the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in tensors.items():
        end = offset + value.nbytes
        header[name] = {"dtype": "F16", "shape": value.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values())


def _header(path: Path) -> dict[str, Any]:
    """Raises BaseError."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            values: dict[str, Any] = json.loads(file.read(length))
            return values
    except (OSError, struct.error, ValueError, MemoryError, OverflowError) as error:
        raise BaseError(f"{path} is no safetensors file: {error}.") from None
