"""The files of a Hugging Face folder that hold weights. Standard library only."""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import UnsupportedModel

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def weight_files(folder: str | Path) -> tuple[Path, ...]:
    """The safetensors files in use, by name: those of the index, or the single one.

    Raises UnsupportedModel where there is neither, or where the index names a missing file.
    """
    folder = Path(folder)
    index = folder / INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = [SINGLE]
    for name in names:
        if not (folder / name).is_file():
            raise UnsupportedModel(
                f"{name} is missing from the model folder (weights must be safetensors)"
            )
    return tuple(folder / name for name in names)
