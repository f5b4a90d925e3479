"""Kernels compiled ahead of their launches, by processes and threads, with no GPU at hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.compiling import num_cores

NOTED = ["_gate", "_residual", "_norm_rows", "_norm_rows"]


def run(case: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Of `tests.support.compiled_ahead`, its cache empty at first. Returns when all of its
    processes, which hold its output open, have ended."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.compiled_ahead", case],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def launched_after(case: str, cache: Path) -> dict[str, list[str]]:
    """What it prints."""
    done = run(case, cache)
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


def test_processes_end_without_a_word_when_their_parent_is_killed(tmp_path: Path) -> None:
    done = run("killed", tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("150000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None)],
)
def test_cores_are_those_of_the_container(tmp_path: Path, quota: str, cores: int | None) -> None:
    path = tmp_path / "cpu.max"
    assert num_cores(path) == len(os.sched_getaffinity(0))
    path.write_text(quota)
    assert num_cores(path) == (cores or len(os.sched_getaffinity(0)))
