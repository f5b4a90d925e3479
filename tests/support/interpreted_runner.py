"""The GPU's pass on the CPU, kernels in Triton's interpreter: all but streams and graphs.

TRITON_INTERPRET must be set before any kernel's module is imported.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.config import EngineConfig
from engine.cpu_runner import CpuLaunch
from engine.cuda_runner import step_result
from engine.device_arena import DTYPES, DeviceArena
from engine.device_pass import DevicePass
from engine.model.spec import BackboneSpec
from engine.model.weights import load_weights
from engine.pass_costs import EXACT
from engine.plan import StepPlan
from tests.support.recording import Record


class DoneUpload:
    def done(self) -> bool:
        return True


class InterpretedRunner:
    """plan.Runner: every plan is computed when it is launched."""

    NUM_SLOTS = 3
    passes = EXACT

    def __init__(self, config: EngineConfig, host: memoryview | None) -> None:
        self.spec = BackboneSpec.load(config.model.path)
        weights = load_weights(config.model.path, self.spec, DTYPES[config.model.dtype])
        arena = DeviceArena(config, self.spec, torch.device("cpu"))
        self._pass = DevicePass(config, self.spec, weights, arena.pages, self.NUM_SLOTS)
        self.num_pages, self.page_bytes = len(arena.pages), arena.page_bytes
        self._host = host
        self.record = Record()

    def launch(self, plan: StepPlan) -> CpuLaunch:
        slot = plan.id % self.NUM_SLOTS
        filled = self._pass.fill(plan, slot)
        with torch.inference_mode():
            self._pass.enqueue(plan, filled, slot, self._pass)
        num = 0 if filled is None else len(filled.sampled)
        drawn = self._pass.sampler.result[:num].tolist()
        self.record.note(plan, self._pass.backbone.logits[:num].clone())
        return CpuLaunch(plan, step_result(plan, drawn, 1e-3))

    def page(self, position: int) -> torch.Tensor:
        return self._pass.arena[position]

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> DoneUpload:
        assert self._host is not None
        source = np.frombuffer(self._host, np.uint8)[host_offset : host_offset + num_bytes]
        arena = self._pass.arena.view(-1).view(torch.uint8).numpy()
        start = start_page * self.page_bytes
        arena[start : start + num_bytes] = source
        return DoneUpload()

    def close(self) -> None:
        """Nothing to give back."""
