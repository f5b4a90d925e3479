"""GPU kernels run on the GPU where there is one, else in Triton's interpreter.

The interpreter is chosen when a kernel's module is imported, hence here, ahead of the test modules.
"""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def cuda() -> str:
    """For tests marked gpu."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return "cuda"
