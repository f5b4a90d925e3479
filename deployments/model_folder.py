"""What the files of a model's Hugging Face folder say of it, before anybody loads it."""

from __future__ import annotations

import json
from pathlib import Path

from engine.config import Dtype


def number_of(path: Path, name: str) -> int | None:
    """A number of the model's config.json. None where that can't be read; whoever loads the model
    complains."""
    try:
        value = json.loads((path / "config.json").read_text()).get(name)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, int) else None


def weight_bytes(path: Path, dtype: Dtype) -> int:
    """Of the weights once loaded, taking the files to be of two bytes an element."""
    stored = sum(f.stat().st_size for f in path.glob("*.safetensors"))
    return stored * (2 if dtype == "float32" else 1)
