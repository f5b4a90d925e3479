"""How a child process of a replica (core, loader) attaches to its parent.

The parent starts `python -m <module> --fd N --host-fd M --liveness-fd K --receipts-fd R`: N is its
end of the channel, M the shared host memory (a memfd), K the read end of the liveness pipe, R where
it counts what it has read. The channel's first message is the `EngineConfig`.

Standard library only.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from engine.channel import Channel
from engine.config import EngineConfig
from engine.liveness import guard
from engine.receipts import Receipts


@dataclass(frozen=True, slots=True)
class Parent:
    """What a child has from its parent. `host` is the shared host memory, writable."""

    channel: Channel
    config: EngineConfig
    host: mmap.mmap


def attach(argv: Sequence[str] | None = None) -> Parent:
    """Read the command line, arm the liveness guard, open the channel, wait for the config.

    Ctrl-C at a terminal reaches the whole process group: it is the parent's to decide what it
    means, so a child ignores it. Raises ChannelClosed where the parent goes before it has said
    anything.
    """
    parser = argparse.ArgumentParser()
    for name in ("--fd", "--host-fd", "--liveness-fd", "--receipts-fd"):
        parser.add_argument(name, type=int, required=True)
    fds = parser.parse_args(argv)
    guard(fds.liveness_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=fds.fd), receipts=Receipts(fds.receipts_fd))
    host = mmap.mmap(fds.host_fd, 0)
    os.close(fds.host_fd)
    config = channel.receive()
    if not isinstance(config, EngineConfig):
        raise TypeError(f"The first message must be an EngineConfig, not {type(config).__name__}.")
    return Parent(channel, config, host)
