"""A process that compiles kernels for a GPU without touching it, see `kernels.compiling`.

`python -m kernels.compiler TARGET`: TARGET are the words of Triton's GPUTarget, as JSON. It says
READY once it is. Then it answers each line, the words of a `compiling.Launch`, with DONE once that
kernel is in Triton's cache on disk, or with FAILED, and ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.cache import triton_key
from triton.runtime.driver import driver

from kernels.compiling import DONE, Launch, settle_keys

READY, FAILED = "ready", "failed"
MOST_OOM_SCORE = "1000"


class Target:
    """Stands for Triton's driver of a GPU, which the compiler only asks what it is."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def serve(target: GPUTarget, launches: Iterable[str], answer: Callable[[str], object]) -> None:
    """Compile what `launches` says, line by line."""
    driver.set_active(Target(target))
    settle_keys()
    # Both are remembered, and take most of a second.
    triton_key()
    make_backend(target).hash()
    answer(READY)
    for line in launches:
        try:
            Launch(*json.loads(line)).compile()
        except Exception:  # the launch itself will say why
            answer(FAILED)
        else:
            answer(DONE)


def main() -> None:
    # Ctrl-C at a terminal reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Where memory runs out, this process goes first: others, or the launch itself, compile instead.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(MOST_OOM_SCORE)
    answers = os.dup(sys.stdout.fileno())
    # Whatever else is printed is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        serve(
            GPUTarget(*json.loads(sys.argv[1])),
            sys.stdin,
            lambda word: os.write(answers, f"{word}\n".encode()),
        )


if __name__ == "__main__":
    main()
