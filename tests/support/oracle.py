"""What transformers + PEFT answered, as `tests/oracle/make_heldout.py` stored it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """One run of the oracle: `adapter` (None: the base) on prompt number `prompt`."""

    prompt: int
    adapter: str | None
    prompt_tokens: int
    tokens: list[int]
    text: str
    finish: str
    gaps: list[float]


@dataclass(frozen=True)
class Oracle:
    """prompts: {"adapter": whose kind of prompt it is, "prompt", "expected"} each."""

    prompts: list[dict[str, Any]]
    runs: list[Run]
    max_tokens: int


def load() -> Oracle:
    folder = Path(__file__).parents[1] / "oracle"
    stored = json.loads((folder / "heldout.json").read_text())
    runs = [Run(**run) for run in stored["runs"]]
    return Oracle(json.loads((folder / "prompts.json").read_text()), runs, stored["max_tokens"])
