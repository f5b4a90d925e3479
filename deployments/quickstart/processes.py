"""Every process that comes of a command, whatever becomes of the ones in between. Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

PROC = Path("/proc")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.1


class ProcessTree:
    """A command in a session of its own, and all its descendants.

    This process becomes the parent of those whose own parent has ended, so that none is lost: after
    `kill`, nothing that the command ever started runs. Descendants of this process are taken to be
    the command's, so it must have no other child meanwhile.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: BinaryIO) -> None:
        """Start `command` with its output going to `log`.

        The new session keeps the terminal's Ctrl-C from it: who stops it does so on purpose. It
        gets SIGTERM when the calling thread ends, so that it outlives no SIGKILL of this process.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        parent = os.getpid()

        def follow() -> None:
            """In the child before its command: system calls alone, whatever threads there were."""
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._child = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=follow,  # noqa: PLW1509
        )

    @property
    def exit_code(self) -> int | None:
        """Of the command itself; None while it runs."""
        return self._child.poll()

    def interrupt(self) -> None:
        """Ask the command to end, as Ctrl-C would. Nothing happens where it has ended."""
        if self.exit_code is None:
            self._child.send_signal(signal.SIGINT)

    def kill(self, timeout_s: float) -> bool:
        """SIGKILL every descendant; whether all are gone within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while found := self.descendants():
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def descendants(self) -> list[int]:
        """Process ids below this one that still run. Collects those that have ended."""
        self._reap()
        children: dict[int, list[int]] = {}
        for pid, parent in _parents().items():
            children.setdefault(parent, []).append(pid)
        found, todo = [], [os.getpid()]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return found

    def _reap(self) -> None:
        """Collect ended descendants that became our children; the command itself is Popen's."""
        self._child.poll()
        for pid, parent in _parents().items():
            if parent == os.getpid() and pid != self._child.pid:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue


def _parents() -> dict[int, int]:
    """Process id -> its parent's, of every process there is."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it ended meanwhile
                continue
            # pid (name) state parent ...; the name may hold anything, so from its last bracket on
            found[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    return found
