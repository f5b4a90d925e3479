"""An entry as Redis holds it: one string, its revision in decimal, a space, its value as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deployments.registry.registry import Entry


def to_blob(rev: int, value: Mapping[str, Any]) -> str:
    return f"{rev} {written(value)}"


def written(value: Mapping[str, Any]) -> str:
    """The value alone, which the script puts its revision before. Raises ValueError for a number
    that JSON hasn't."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def read_entry(key: str, held: str) -> Entry:
    rev, text = held.split(" ", 1)
    return Entry(key, json.loads(text), int(rev))


def grouped(flat: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """A script's answer, which is flat, by records of `size` strings."""
    return (flat[i : i + size] for i in range(0, len(flat), size))
