"""Runners that keep the logits every token was drawn from."""

from __future__ import annotations

import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.cpu_runner import CpuLaunch, CpuRunner
from engine.plan import StepPlan


class Record:
    """logits[request id][position of the token that they chose]."""

    def __init__(self) -> None:
        self.logits: dict[str, dict[int, torch.Tensor]] = {}

    def note(self, plan: StepPlan, latest: torch.Tensor) -> None:
        """latest [N, V] of the plan's sampled rows."""
        sampled = [span for span in plan.spans if span.samples]
        for i, span in enumerate(sampled):
            of = self.logits.setdefault(span.sequence.request.id, {})
            of[span.start + span.num_tokens] = latest[i]

    def answer(self, request_id: str, first: int, num_tokens: int) -> torch.Tensor:
        """[num_tokens, V] of the tokens at positions from `first` on."""
        return torch.stack([self.logits[request_id][first + i] for i in range(num_tokens)])


class RecordingRunner(CpuRunner):
    """On the CPU."""

    def __init__(self, config: EngineConfig, host: memoryview) -> None:
        super().__init__(config, host)
        self.record = Record()
        self._latest = torch.empty(0)

    def launch(self, plan: StepPlan) -> CpuLaunch:
        launch = super().launch(plan)
        self.record.note(plan, self._latest)
        return launch

    def _logits(self, batch: Batch) -> torch.Tensor:
        logits = super()._logits(batch)
        # The sampler changes them in place.
        self._latest = logits.clone()
        return logits
