"""A child ends with its parent, also when it is stuck in C code that keeps the GIL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENDED_S = 5.0
"""After its parent; it takes a few milliseconds."""
CHILD = """
import os, sys, re, time
from engine.liveness import guard
guard(int(sys.argv[1]))
print(os.getpid(), flush=True)
if sys.argv[2] == "sum":
    sum(range(10**14))
elif sys.argv[2] == "regex":
    re.match(r"(a|aa)+$", "a" * 90 + "b")
else:
    time.sleep(3600)
"""

# Starts the child and says its pid; the child inherits stdout. Then waits to be killed.
PARENT = """
import os, subprocess, sys, time
read, write = os.pipe()
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(read), sys.argv[2]], pass_fds=[read])
os.close(read)
time.sleep(3600)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("stuck", ["sum", "regex", "sleep"])
def test_sigkill_of_the_parent_ends_a_stuck_child(stuck: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, stuck], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    killed_s = time.monotonic()
    parent.kill()
    parent.wait()
    # The child holds stdout: its end of file is the child's end. No sleeping, no polling.
    assert parent.stdout.read() == ""
    parent.stdout.close()
    while alive(child):
        assert time.monotonic() - killed_s < ENDED_S
        time.sleep(0.001)
    assert time.monotonic() - killed_s < ENDED_S


def test_a_parent_that_is_gone_already_counts() -> None:
    read, write = os.pipe()
    os.close(write)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(read), "sleep"],
        pass_fds=[read],
        capture_output=True,
        timeout=120,
        check=False,
    )
    os.close(read)
    assert done.returncode in (70, -signal.SIGKILL)
