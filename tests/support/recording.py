"""A CPU runner that keeps the logits every token was drawn from."""

from __future__ import annotations

import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.cpu_runner import CpuLaunch, CpuRunner
from engine.plan import StepPlan


class RecordingRunner(CpuRunner):
    """logits[request id][position of the token that they chose]."""

    def __init__(self, config: EngineConfig, host: memoryview) -> None:
        super().__init__(config, host)
        self.logits: dict[str, dict[int, torch.Tensor]] = {}
        self._latest: torch.Tensor | None = None

    def launch(self, plan: StepPlan) -> CpuLaunch:
        launch = super().launch(plan)
        sampled = [span for span in plan.spans if span.samples]
        for i, span in enumerate(sampled):
            of = self.logits.setdefault(span.sequence.request.id, {})
            of[span.start + span.num_tokens] = self._latest[i]
        return launch

    def answer(self, request_id: str, first: int, num_tokens: int) -> torch.Tensor:
        """[num_tokens, V] of the tokens at positions from `first` on."""
        return torch.stack([self.logits[request_id][first + i] for i in range(num_tokens)])

    def _logits(self, batch: Batch) -> torch.Tensor:
        logits = super()._logits(batch)
        # The sampler changes them in place.
        self._latest = logits.clone()
        return logits
