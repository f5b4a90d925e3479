"""TCP ports of 127.0.0.1 for servers that a test is about to start.

They lie below those that the kernel gives to clients, and above those that Ray gives to its
workers: between the look and the server's start nobody takes one. Each of the processes that run
tests side by side has its own.
"""

from __future__ import annotations

import os
import socket
from itertools import count

MAX_PROCESSES = 16
SINGLE, RUNS = range(23_000, 30_000), range(20_000, 22_700)
"""Of `free_run` each port is used plus `BESIDE`, too."""
BESIDE = 10_000
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MAX_PROCESSES
_turns = count(os.getpid())


def free_port() -> int:
    """Not the one before."""
    return _first_free(SINGLE, 1, (0,))


def free_run(length: int) -> int:
    """The first of `length` in a row; each of them plus 10,000 is free as well."""
    return _first_free(RUNS, length, (0, BESIDE))


def _first_free(ports: range, length: int, beside: tuple[int, ...]) -> int:
    places = len(ports) // (length * MAX_PROCESSES)
    for _ in range(places):
        place = (next(_turns) % places) * MAX_PROCESSES + _PROCESS
        first = ports[place * length]
        if all(_is_free(first + i + extra) for i in range(length) for extra in beside):
            return first
    raise RuntimeError(f"no free port in {ports}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
