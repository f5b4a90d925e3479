"""Servers that end with the test run, however it ends: a killed run leaves none behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_BECOME = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {_SIGKILL}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def ending_with_us(command: Sequence[str]) -> list[str]:
    """The command of a server that the main thread starts; the kernel kills it once that is gone.
    command[0] is a path."""
    return [sys.executable, "-S", "-c", _BECOME, *command]
