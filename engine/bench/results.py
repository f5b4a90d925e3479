"""Results as one JSON line a case, printed and kept with where and when they were measured."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "engine" / "results.jsonl"


class Results:
    """path: the file that lines are appended to."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path
        self._where = {
            "gpu": torch.cuda.get_device_name(),
            "commit": commit_of(ROOT),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        }

    def add(self, case: dict[str, Any]) -> None:
        line = json.dumps({**case, **self._where})
        print(line, flush=True)
        with self._path.open("a") as file:
            file.write(line + "\n")


def commit_of(folder: Path) -> str:
    """Of the working tree that it is in; "unknown" where git or a repository is missing."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"
