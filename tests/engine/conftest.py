"""GPU kernels run on the GPU where there is one, else in Triton's interpreter, which is chosen when
a kernel's module is imported: hence here, ahead of the test modules."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
