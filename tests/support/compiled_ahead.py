"""Compiles kernels of an sm_90 before their launch: `python -m tests.support.compiled_ahead CASE`.

Prints JSON: the kernels that were noted, those that were then compiled again where they were
launched, and those found on disk. A launch here is Triton's `warmup`: there is no GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import astuple, replace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernels.compiler import Target
from kernels.compiling import Compilers, Launch, noting, settle_keys
from kernels.gate import silu_gate
from kernels.norm import norm_rows
from kernels.residual import add_residual, squares_of
from kernels.tuning import Tile

TILE = Tile(256)
CAPABILITY = 90


def rows(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*size, dtype=dtype, device="meta")


def gate() -> None:
    silu_gate(rows(32, 512), rows(32, 256), TILE)


def residual() -> None:
    r = rows(32, 256)
    add_residual(rows(32, 256), r, rows(256), rows(32, 256), squares_of(r, 1e-5, TILE), TILE)


def norm() -> None:
    norm_rows(rows(32, 256), rows(8, dtype=torch.int64), rows(256), 1e-5, rows(8, 256))


def all_of_them() -> None:
    """The norm of 512 as well, which is another kernel, and the norm twice, which is not."""
    for launch in (gate, residual, norm, norm):
        launch()
    norm_rows(rows(32, 512), rows(8, dtype=torch.int64), rows(512), 1e-5, rows(8, 512))


def noted_launches() -> list[Launch]:
    noted: list[Launch] = []
    with noting(noted.append):
        all_of_them()
    return noted


def in_all() -> None:
    """By two processes and a thread, whoever comes first."""
    Compilers(num_processes=2, num_threads=1).compile(all_of_them)


def without_processes() -> None:
    """They end before they are ready."""
    sys.executable = "/bin/false"
    Compilers(num_processes=2, num_threads=2).compile(all_of_them)


def nowhere() -> None:
    """No process can be started, and nothing compiles in the threads either."""
    sys.executable = "/missing"
    preload, JITFunction.preload = JITFunction.preload, None
    Compilers(num_processes=2, num_threads=2).compile(all_of_them)
    JITFunction.preload = preload


def interrupted() -> None:
    """What launches fails; and what is to be done before it does."""

    def fail() -> None:
        gate()
        raise InterruptedError

    with contextlib.suppress(InterruptedError):
        Compilers(num_processes=2, num_threads=2).compile(fail)
    with contextlib.suppress(InterruptedError), Compilers(num_processes=2):
        raise InterruptedError
    with contextlib.suppress(ChildProcessError):  # that there is none
        raise AssertionError(f"{os.waitpid(-1, os.WNOHANG)} is left")


def killed() -> None:
    """While its processes start, which then have nobody to tell that they are ready."""
    Compilers(num_processes=2)
    os.kill(os.getpid(), signal.SIGKILL)


def in_another_order() -> None:
    """By a process that comes to the residual first; here the gate does, which shares functions
    with it. The process is told of a kernel that isn't there, too."""
    settle_keys()
    noted = noted_launches()
    missing = replace(noted[0], kernel="missing")
    lines = [json.dumps(astuple(each)) for each in (missing, *reversed(noted))]
    target = json.dumps(("cuda", CAPABILITY, 32))
    done = subprocess.run(
        [sys.executable, "-m", "kernels.compiler", target],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = done.stdout.split()
    assert answers == ["ready", "failed", *["done"] * len(noted)], answers


CASES = {
    case.__name__: case
    for case in (in_all, without_processes, nowhere, interrupted, killed, in_another_order)
}


def main(case: str) -> None:
    """The case, then the launches themselves."""
    driver.set_active(Target(GPUTarget("cuda", CAPABILITY, 32)))
    noted = noted_launches()
    CASES[case]()
    found: dict[str, list[str]] = {
        "noted": [each.kernel for each in noted],
        "disk": [],
        "again": [],
    }

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        found["disk" if cache_hit else "again"].append(src.name)

    knobs.compilation.listener = listen
    run = JITFunction.run
    JITFunction.run = lambda self, *args, warmup, **constants: run(
        self, *args, warmup=True, **constants
    )
    all_of_them()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
