"""A process that compiles kernels for a GPU without touching it, see `kernels.compiling`.

`python -m kernels.compiler TARGET`: TARGET are the words of Triton's GPUTarget, as JSON. It says
READY once it is. Then it answers each line, the words of a `compiling.Launch`, with DONE once that
kernel is in Triton's cache on disk, or with FAILED, and ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TextIO

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.cache import triton_key
from triton.runtime.driver import driver

from kernels.compiling import DONE, Launch, settle_keys

READY, FAILED = "ready", "failed"


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


def serve(target: GPUTarget, launches: TextIO, answers: TextIO) -> None:
    """Compile what `launches` says, line by line."""
    driver.set_active(Target(target))
    settle_keys()
    # Both are remembered, and take most of a second.
    triton_key()
    make_backend(target).hash()
    print(READY, file=answers, flush=True)
    for line in launches:
        try:
            Launch(*json.loads(line)).compile()
        except Exception:  # the launch itself will say why
            print(FAILED, file=answers, flush=True)
        else:
            print(DONE, file=answers, flush=True)


def main() -> None:
    # Ctrl-C at a terminal reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Whatever else is printed is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(GPUTarget(*json.loads(sys.argv[1])), sys.stdin, answers)


if __name__ == "__main__":
    main()
