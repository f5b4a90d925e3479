"""Adapters from shared host memory to the arena, on a stream of their own.

The host memory is registered with the driver once, so that a copy runs by itself. Nothing here
waits: the engine asks for an upload when no launched plan may still touch its pages, and uses the
adapter once `done` has said so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class DeviceUpload:
    """A copy on the copy stream."""

    event: torch.cuda.Event

    def done(self) -> bool:
        """Raises where the device failed."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]


class DeviceUploads:
    """arena: its bytes on the device. host: the shared memory; None where nothing is uploaded."""

    def __init__(self, arena: torch.Tensor, host: memoryview | None) -> None:
        self._arena = arena
        self._stream = torch.cuda.Stream(arena.device)  # type: ignore[no-untyped-call]
        self._host = None if host is None else torch.from_numpy(np.frombuffer(host, np.uint8))
        if self._host is not None:
            register = torch.cuda.cudart().cudaHostRegister  # type: ignore[no-untyped-call]
            _check(int(register(self._host.data_ptr(), self._host.numel(), 0)))

    def upload(self, host_offset: int, num_bytes: int, start_byte: int) -> DeviceUpload:
        """One copy of a block. Raises ValueError where it doesn't fit either side."""
        if self._host is None:
            raise ValueError("no host memory to upload from")
        source = self._host[host_offset : host_offset + num_bytes]
        target = self._arena[start_byte : start_byte + num_bytes]
        if not len(source) == len(target) == num_bytes:
            raise ValueError(f"{num_bytes} bytes from {host_offset} to {start_byte} don't fit")
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            event.record(self._stream)
        return DeviceUpload(event)

    def close(self) -> None:
        """Waits for copies under way and gives the host memory back to the system."""
        self._stream.synchronize()
        if self._host is not None:
            unregister = torch.cuda.cudart().cudaHostUnregister  # type: ignore[no-untyped-call]
            _check(int(unregister(self._host.data_ptr())))
            self._host = None


def _check(status: int) -> None:
    """Raise RuntimeError unless a call of the CUDA runtime said 0."""
    if status:
        raise RuntimeError(f"the CUDA runtime answered {status} for the shared host memory")
