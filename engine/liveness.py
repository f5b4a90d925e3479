"""A child process ends when its parent is gone, however stuck it is. Linux; standard library only.

The parent holds the only write end of a pipe and never writes. When the parent ends, however it
ends, the kernel closes that end and sends the child the signal that the child asked for with
F_SETSIG: SIGKILL, so that neither a handler, a mask nor a C call that keeps the GIL is in the way.
A thread that polls the pipe does the same where the kernel can't (sandboxes without F_SETSIG). A
parent-death signal (PR_SET_PDEATHSIG) won't do: it comes when the parent's *thread* ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading

ORPHANED = 70
_F_SETSIG = 10  # Linux; the fcntl module doesn't name it


def guard(fd: int) -> None:
    """End this process, without clean-up, as soon as the other end of the pipe `fd` is closed.

    The calling process owns the signal. Where the parent is gone already, this ends it at once.
    """
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    # Started after arming: a parent that ended in between is seen by the first poll.
    threading.Thread(target=_watch, args=(fd,), name="liveness", daemon=True).start()


def _watch(fd: int) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN | select.POLLHUP)
    poller.poll()
    os._exit(ORPHANED)
