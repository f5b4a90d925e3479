"""Framed pickles over a Unix socketpair, between a replica and one of its children.

A frame is its length (4 bytes, big-endian) and a pickle. Both ends are processes of one release
that this project started, so pickles are trusted.

Neither side ever blocks on a write. `send` hands the socket what it takes at once; what is left
goes to an outbox that a thread drains. Another thread always reads, into an inbox of bytes: it
holds the GIL only to append them, and messages are unpickled by whoever takes them. The inbox is
therefore unbounded; the outbox is bounded in bytes. A peer that leaves that much unread is stuck,
not slow, and no message may be dropped or merged, so an overflow closes the channel and `send`
raises: the owner treats the peer as dead.

Standard library only.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.errors import Unavailable
from engine.receipts import Receipts

HEADER = struct.Struct(">I")
MAX_OUTBOX_BYTES = 64 << 20
READ_BYTES = 256 << 10
SOCKET_BUFFER_BYTES = 4 << 20


class ChannelClosed(Unavailable):
    """The peer is gone, or left so much unread that it is taken for dead."""

    code = "channel_closed"


class Channel:
    """One end. Owns `sock` and two daemon threads; every method may be called from any thread.

    on_arrival  called by the reader thread when the inbox turns non-empty and when the channel
                closes; it must return at once (for instance `loop.call_soon_threadsafe(...)`)
    receipts    counts each message that has come, before it can be taken
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_arrival: Callable[[], None] | None = None,
        max_outbox_bytes: int = MAX_OUTBOX_BYTES,
        receipts: Receipts | None = None,
    ) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self._sock = sock
        self._on_arrival = on_arrival
        self._max_outbox_bytes = max_outbox_bytes
        self._receipts = receipts
        self._inbox: deque[bytes] = deque()
        self._arrived = threading.Condition()
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._writable = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._read, name="channel-reader", daemon=True),
            threading.Thread(target=self._write, name="channel-writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        """No message will come any more. What came before may still be taken."""
        return self._closed

    def take(self) -> list[Any]:
        """Every message that has come since the last call, in order. Never waits."""
        with self._arrived:
            if not self._inbox:
                return []
            frames, self._inbox = self._inbox, deque()
        return [pickle.loads(frame) for frame in frames]

    def receive(self) -> Any:
        """Wait for the next message alone. Raises ChannelClosed where none will come."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._inbox) or self._closed)
            if not self._inbox:
                raise ChannelClosed("The peer of this channel is gone.")
            frame = self._inbox.popleft()
        return pickle.loads(frame)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to take or the channel is closed; False after `timeout`
        seconds."""
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self._inbox) or self._closed, timeout)

    def send(self, message: object) -> None:
        """Send without blocking. Raises ChannelClosed, also where the outbox would overflow."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        frame = HEADER.pack(len(body)) + body
        with self._writable:
            if self._closed:
                raise ChannelClosed("The peer of this channel is gone.")
            if not self._outbox_bytes:
                frame = frame[self._send_now(frame) :]
            overflow = self._outbox_bytes + len(frame) > self._max_outbox_bytes
            if frame and not overflow:
                self._outbox.append(frame)
                self._outbox_bytes += len(frame)
                self._writable.notify_all()
        if overflow:
            self._close()
            raise ChannelClosed(
                f"The peer left over {self._max_outbox_bytes} bytes unread: it is taken for dead."
            )

    def flush(self, timeout: float) -> bool:
        """Wait until everything sent has left this process; False after `timeout` seconds or
        where the channel closed first."""
        with self._writable:
            self._writable.wait_for(lambda: not self._outbox_bytes or self._closed, timeout)
            return not self._outbox_bytes

    def close(self) -> None:
        """Close both directions and join the threads. Messages not yet taken stay. Idempotent."""
        self._close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._sock.close()

    def _send_now(self, frame: bytes) -> int:
        """How much of `frame` the socket took at once. The caller holds the lock."""
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            # The reader sees the end of the stream and closes the channel in its own time.
            return 0

    def _read(self) -> None:
        pending = bytearray()
        while data := self._receive():
            pending += data
            frames = _split(pending)
            if frames:
                self._deliver(frames)
        self._close()

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(READ_BYTES)
        except OSError:
            return b""

    def _deliver(self, frames: list[bytes]) -> None:
        if self._receipts is not None:
            self._receipts.add(len(frames))
        with self._arrived:
            was_empty = not self._inbox
            self._inbox.extend(frames)
            self._arrived.notify_all()
        if was_empty and self._on_arrival is not None:
            self._on_arrival()

    def _write(self) -> None:
        while True:
            with self._writable:
                self._writable.wait_for(lambda: bool(self._outbox) or self._closed)
                if self._closed:
                    return
                frame = self._outbox[0]
            try:
                self._sock.sendall(frame)
            except OSError:
                self._close()
                return
            with self._writable:
                self._outbox.popleft()
                self._outbox_bytes -= len(frame)
                self._writable.notify_all()

    def _close(self) -> None:
        with self._writable:
            if self._closed:
                return
            self._closed = True
            self._writable.notify_all()
        with contextlib.suppress(OSError):  # the peer may have been faster
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._arrived:
            self._arrived.notify_all()
        if self._on_arrival is not None:
            self._on_arrival()


def _split(pending: bytearray) -> list[bytes]:
    """Cut the whole frames off the front of `pending` and return their bodies."""
    frames: list[bytes] = []
    start = 0
    while len(pending) - start >= HEADER.size:
        (size,) = HEADER.unpack_from(pending, start)
        end = start + HEADER.size + size
        if len(pending) < end:
            break
        frames.append(bytes(pending[start + HEADER.size : end]))
        start = end
    del pending[:start]
    return frames
