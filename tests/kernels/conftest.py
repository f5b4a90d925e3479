"""The device that kernels run on: see `tests.support.interpreter`."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def cuda() -> str:
    """For tests marked gpu."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return "cuda"
