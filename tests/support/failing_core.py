"""`python -m tests.support.failing_core`: a core whose GPU fails in the middle of its work.

The file that LORAPLEX_TEST_FAULT names holds `address` (a kernel writes where nothing is) or
`assertion` (a kernel's own check fails); the monotonic time of the fault is appended to it.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from engine.config import EngineConfig
from engine.core import end, main
from engine.cuda_runner import CudaLaunch, CudaRunner
from engine.plan import StepPlan

HEALTHY_STEPS = 40


@triton.jit
def write_to(address):
    tl.store(address.to(tl.pointer_type(tl.int64)), 1)


class FailingRunner(CudaRunner):
    """After some steps, a kernel that fails follows a step on its stream."""

    num_steps = 0

    def launch(self, plan: StepPlan) -> CudaLaunch:
        launch = super().launch(plan)
        self.num_steps += 1
        if self.num_steps == HEALTHY_STEPS:
            self._fail(Path(os.environ["LORAPLEX_TEST_FAULT"]))
        return launch

    def _fail(self, order: Path) -> None:
        kind = order.read_text().strip()
        with torch.cuda.stream(self._stream):
            if kind == "address":
                good = torch.zeros(1, dtype=torch.int64, device="cuda")
                write_to[(1,)](good.data_ptr())  # compiled first, so that the fault has no delay
                order.write_text(f"{kind} {time.monotonic()}")
                write_to[(1,)](1 << 46)
            else:
                few = torch.zeros(4, device="cuda")
                far = torch.full((1,), 1 << 40, dtype=torch.int64, device="cuda")
                order.write_text(f"{kind} {time.monotonic()}")
                few[far]


def build(config: EngineConfig, host: mmap.mmap) -> Any:
    return FailingRunner.load(config, memoryview(host))


if __name__ == "__main__":
    end(main(build))
