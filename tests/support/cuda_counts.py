"""Counts what must not happen once a runner is ready: compiling, allocating, pinning, freeing.

Counted at three places: Triton's own hook, torch's two allocators, and every call of the CUDA
driver that takes or gives back memory or loads code, whoever makes it (through CUPTI's callbacks;
one subscriber at a time, so not under a profiler).
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter

import torch
import triton

DRIVER, RESOURCE = 1, 3
MODULE_LOADED = 6
MOST_CALLS = 2000
"""Numbers of the driver's calls are below it."""
COUNTED = re.compile(
    r"cu(Mem(Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|PoolCreate)"
    r"|Module(Load|Unload)|Library(Load|Unload)|Link(Create|Complete)|Array(3D)?Create"
    r"|MipmappedArrayCreate|GraphInstantiate)"
)


class _Call(ctypes.Structure):
    """The start of CUPTI's CUpti_CallbackData."""

    _fields_ = [("site", ctypes.c_int), ("name", ctypes.c_char_p)]


_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Call)
)


class DeviceCounts:
    """Between `with` and its end: calls by name, and what torch and Triton counted.

    taken_bytes: how much less of the GPU's memory is free at the end; other processes' too, so no
    part of the totals.
    """

    def __init__(self) -> None:
        self.driver_calls: Counter[str] = Counter()
        self.compiled: list[str] = []
        self._callback = _CALLBACK(self._called)
        self._cupti = _cupti()
        self._subscriber = ctypes.c_void_p()

    def __enter__(self) -> DeviceCounts:
        torch.cuda.synchronize()
        self._before = _torch_counts()
        self._free_bytes = torch.cuda.mem_get_info()[0]
        self._hook = triton.knobs.runtime.jit_post_compile_hook
        triton.knobs.runtime.jit_post_compile_hook = self._compiled
        subscriber = ctypes.byref(self._subscriber)
        self._check(self._cupti.cuptiSubscribe(subscriber, self._callback, None))
        for number in range(1, MOST_CALLS):
            name = ctypes.c_char_p()
            found = self._cupti.cuptiGetCallbackName(DRIVER, number, ctypes.byref(name))
            if found == 0 and name.value and COUNTED.match(name.value.decode()):
                self._enable(DRIVER, number)
        self._enable(RESOURCE, MODULE_LOADED)
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize()
        self._check(self._cupti.cuptiUnsubscribe(self._subscriber))
        triton.knobs.runtime.jit_post_compile_hook = self._hook
        after = _torch_counts()
        self.taken_bytes = self._free_bytes - torch.cuda.mem_get_info()[0]
        self.torch = {name: after[name] - self._before[name] for name in after}

    def totals(self) -> dict[str, int]:
        """Of everything, all of which should be 0."""
        calls = {f"driver {name}": count for name, count in self.driver_calls.items()}
        return {"triton compilations": len(self.compiled), **self.torch, **calls}

    def _called(self, _: object, domain: int, number: int, call: object) -> None:
        if domain == RESOURCE:
            self.driver_calls["modules loaded"] += 1
        elif call.contents.site == 0:  # type: ignore[attr-defined]
            self.driver_calls[call.contents.name.decode()] += 1  # type: ignore[attr-defined]

    def _compiled(self, *, fn: object, **_: object) -> None:
        self.compiled.append(str(getattr(fn, "name", fn)))

    def _enable(self, domain: int, number: int) -> None:
        self._check(self._cupti.cuptiEnableCallback(1, self._subscriber, domain, number))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"CUPTI answered {status}. Is another profiler running?")


def _torch_counts() -> dict[str, int]:
    device, host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    return {
        "device allocations": device["num_device_alloc"],
        "device frees": device["num_device_free"],
        "pinned allocations": host["num_host_alloc"],
        "pinned frees": host["num_host_free"],
    }


def _cupti() -> ctypes.CDLL:
    """The library that torch has loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libcupti.so" in line}
    if not paths:
        raise RuntimeError("This build of torch has no CUPTI: take one that was built for CUDA.")
    return ctypes.CDLL(paths.pop())
