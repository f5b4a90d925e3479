"""One child process of a replica: started, spoken to, ended."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping

from engine.channel import Channel, ChannelClosed
from engine.config import EngineConfig
from engine.receipts import Receipts, open_memory


class Child:
    """A process running `python -m <module>`, spawned (never forked), with the config sent to it.

    host_fd     shared host memory; the child inherits it
    on_arrival  as in `Channel`
    niceness    added to the parent's
    """

    def __init__(
        self,
        module: str,
        config: EngineConfig,
        host_fd: int,
        env: Mapping[str, str],
        on_arrival: Callable[[], None],
        *,
        niceness: int = 0,
    ) -> None:
        ours, theirs = socket.socketpair()
        liveness, self._liveness = os.pipe()
        counted = open_memory()
        names = ("--fd", "--host-fd", "--liveness-fd", "--receipts-fd")
        fds = (theirs.fileno(), host_fd, liveness, counted)
        flags = [word for name, fd in zip(names, fds, strict=True) for word in (name, str(fd))]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *flags],
                pass_fds=fds,
                env=dict(env),
                stdin=subprocess.DEVNULL,
            )
        except OSError:
            ours.close()
            os.close(self._liveness)
            os.close(counted)
            raise
        finally:
            theirs.close()
            os.close(liveness)
        if niceness:
            with contextlib.suppress(OSError):  # it may have ended already
                ours_niceness = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, self.pid, ours_niceness + niceness)
        self.receipts = Receipts(counted)
        """Of what it has read; the config is the first."""
        self.channel = Channel(ours, on_arrival=on_arrival)
        with contextlib.suppress(ChannelClosed):  # it has ended already: `on_arrival` says so
            self.channel.send(config)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask_to_end(self) -> None:
        """Close the channel: a child that isn't stuck ends by itself."""
        self.channel.close()

    def end(self, timeout: float) -> int:
        """Return the exit status once it has ended; SIGKILL after `timeout` seconds. Idempotent."""
        self.channel.close()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            if self._liveness >= 0:
                os.close(self._liveness)
                self._liveness = -1
