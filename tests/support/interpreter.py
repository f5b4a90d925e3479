"""GPU kernels run on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import ctypes
import os
from importlib.metadata import version


def choose() -> None:
    """Triton reads the choice when it is imported, and transformers and peft import it: call this
    ahead of every test module. Doesn't wait for torch."""
    if not _has_gpu():
        os.environ["TRITON_INTERPRET"] = "1"


def _has_gpu() -> bool:
    """Whether torch will find one: its build, the driver, and what CUDA_VISIBLE_DEVICES leaves."""
    if version("torch").endswith("+cpu"):
        return False
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    )
