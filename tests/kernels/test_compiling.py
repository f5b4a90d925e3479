"""Kernels compiled ahead of their launches, by processes and threads, with no GPU at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTED = ["_gate", "_residual", "_norm_rows", "_norm_rows"]


def launched_after(case: str, cache: Path) -> dict[str, list[str]]:
    """What `tests.support.compiled_ahead` prints, its cache empty at first."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compiled_ahead", case],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", ["in_all", "without_processes"])
def test_no_launch_compiles_anything(case: str, tmp_path: Path) -> None:
    """Each kernel was noted once, though launched twice."""
    found = launched_after(case, tmp_path)
    assert found["noted"] == NOTED
    assert found["again"] == []


def test_what_nobody_could_compile_is_compiled_where_it_is_launched(tmp_path: Path) -> None:
    assert launched_after("nowhere", tmp_path)["again"] == NOTED


def test_launches_that_fail_leave_neither_processes_nor_a_trace(tmp_path: Path) -> None:
    found = launched_after("interrupted", tmp_path)
    assert sorted(found["disk"] + found["again"]) == sorted(NOTED)


def test_a_process_agrees_on_keys_whatever_it_compiles_first(tmp_path: Path) -> None:
    """All is found on disk, though functions that kernels share had keys for another kernel's sake
    there; a kernel that can't be compiled doesn't end the process."""
    found = launched_after("in_another_order", tmp_path)
    assert found["disk"] == NOTED
    assert found["again"] == []
