"""Bytes on a GPU at an address that is fixed before it is known how many there will be.

Captured graphs hold addresses, and how much memory is left is known only once they are captured. So
addresses for the most are reserved, which costs nothing, a little memory is put behind them for the
capture, and the rest when its size is known: the driver's virtual memory management, which torch's
allocator doesn't offer at a place of one's choosing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from engine.errors import UnsupportedDevice

_PINNED, _ON_DEVICE, _READ_WRITE, _RECOMMENDED = 1, 1, 3, 1
_OUT_OF_MEMORY = 2


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class ReservedMemory:
    """data: uint8 [max_bytes] on the device; only the first `num_bytes` of it may be touched.

    Lives as long as the process. Raises UnsupportedDevice where the driver can't do it.
    """

    def __init__(self, max_bytes: int, first_bytes: int, device: torch.device) -> None:
        """At least `first_bytes`, zeros, are there at once. The device has a context already."""
        self._driver = ctypes.CDLL("libcuda.so.1")
        here = _Location(_ON_DEVICE, device.index or 0)
        self._allocation = _Allocation(_PINNED, 0, here)
        self._access = _Access(here, _READ_WRITE)
        granule = ctypes.c_size_t()
        self._call(
            "cuMemGetAllocationGranularity",
            ctypes.byref(granule),
            ctypes.byref(self._allocation),
            _RECOMMENDED,
        )
        self.granule_bytes = granule.value
        self._base = ctypes.c_uint64()
        size = self._whole(max_bytes)
        self._call(
            "cuMemAddressReserve",
            ctypes.byref(self._base),
            ctypes.c_size_t(size),
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
        )
        self.num_bytes = 0
        self._map(self._whole(first_bytes))
        self.data: torch.Tensor = torch.as_tensor(_Bytes(self._base.value, size), device=device)
        self.data[: self.num_bytes].zero_()

    def grow(self, num_bytes: int) -> None:
        """Put zeros behind the addresses up to `num_bytes`, in whole granules.

        Raises torch.OutOfMemoryError, with nothing taken.
        """
        before = self.num_bytes
        more = self._whole(num_bytes) - before
        if more > 0:
            self._map(more)
            self.data[before : self.num_bytes].zero_()

    def _map(self, num_bytes: int) -> None:
        handle = ctypes.c_uint64()
        size, start = ctypes.c_size_t(num_bytes), ctypes.c_uint64(self._base.value + self.num_bytes)
        nothing = ctypes.c_uint64(0)
        self._call(
            "cuMemCreate", ctypes.byref(handle), size, ctypes.byref(self._allocation), nothing
        )
        self._call("cuMemMap", start, size, ctypes.c_size_t(0), handle, nothing)
        self._call("cuMemSetAccess", start, size, ctypes.byref(self._access), ctypes.c_size_t(1))
        self.num_bytes += num_bytes

    def _whole(self, num_bytes: int) -> int:
        return -(-num_bytes // self.granule_bytes) * self.granule_bytes

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status == _OUT_OF_MEMORY:
            raise torch.OutOfMemoryError(f"{name}: the GPU has too little memory")
        if status:
            raise UnsupportedDevice(
                f"The driver answered {status} to {name}, so the arena can't be sized by what is"
                " left. Name its size in replica.memory.arena_bytes."
            )


class _Bytes:
    """Memory as torch takes it from elsewhere, without a copy."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
