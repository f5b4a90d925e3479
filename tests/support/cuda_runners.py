"""GPU runners for tests: captured or eager, keeping the logits that tokens were drawn from."""

from __future__ import annotations

import torch

from engine.buckets import PassShape
from engine.config import EngineConfig
from engine.cuda_runner import CudaLaunch, CudaRunner
from engine.device_arena import DTYPES
from engine.device_pass import Replay
from engine.model.spec import BackboneSpec
from engine.model.weights import load_weights
from engine.plan import StepPlan
from engine.sequence import Sequence
from engine.types import SamplingParams
from tests.support.drive import Driver
from tests.support.recording import Record
from tests.support.tiny_models import TinyModel

GREEDY = SamplingParams(temperature=0.0)
NUM_COMPILERS = 2
"""For each of the many runners that are made, side by side where tests run so."""


class RecordingCudaRunner(CudaRunner):
    """shapes: of the passes launched."""

    def __init__(self, *args, **options):
        self.record = Record()
        self.shapes: list[PassShape] = []
        super().__init__(*args, **options)
        # It has rehearsed.
        self.record = Record()
        self.shapes.clear()

    def launch(self, plan: StepPlan) -> CudaLaunch:
        launch = super().launch(plan)
        if plan.spans:
            self.shapes.append(self._pass.fill(plan, plan.id % self._num_slots).shape)
        self.record.note(plan, self.latest_logits(sum(span.samples for span in plan.spans)))
        return launch

    def poison(self) -> None:
        """NaN wherever a pass should write before it reads, and in all pages but page 0."""
        torch.cuda.synchronize()
        backbone = self._pass.backbone
        for name in ("_r", "_x", "_y", "_qkv", "_mixed", "_gate_up", "_gated", "_h", "_squares"):
            getattr(backbone, name).fill_(torch.nan)
        backbone.logits.fill_(torch.nan)
        backbone.lora.parts.fill_(torch.nan)
        self._pass.arena[1:].fill_(torch.nan)
        torch.cuda.synchronize()


class TwofoldRunner(RecordingCudaRunner):
    """Runs each pass twice on the same inputs, afresh and from its graph, and compares."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.twofold = _Twofold(self._pass, self._replay)
        self._replay = self.twofold


class _Twofold:
    """num_different: passes, or lm_head's terms, that differ in any bit of logits or arena."""

    def __init__(self, eager, graphs: Replay) -> None:
        self._eager, self._graphs = eager, graphs
        self.num_passes = self.num_different = 0

    def forward(self, shape: PassShape) -> None:
        logits, arena = self._eager.backbone.logits, self._eager.arena
        before = arena.clone()
        logits.fill_(torch.nan)
        self._eager.forward(shape)
        wanted, pages = logits.clone(), arena.clone()
        arena.copy_(before)
        logits.fill_(torch.nan)
        self._graphs.forward(shape)
        num = shape.samples
        same = torch.equal(bits(logits[:num]), bits(wanted[:num]))
        self.num_passes += 1
        # Page 0 is padding's, whose rows write there at once.
        self.num_different += not (same and torch.equal(bits(arena[1:]), bits(pages[1:])))

    def add_head_term(self, num: int) -> None:
        logits = self._eager.backbone.logits
        before = logits.clone()
        self._eager.add_head_term(num)
        wanted = logits.clone()
        logits.copy_(before)
        self._graphs.add_head_term(num)
        self.num_different += not torch.equal(bits(logits[:num]), bits(wanted[:num]))

    def choose(self, num: int) -> None:
        self._graphs.choose(num)


class Runners:
    """Makes runners, and closes them when the test ends."""

    def __init__(self) -> None:
        self.made: list[CudaRunner] = []

    def captured(self, config: EngineConfig, host: memoryview) -> RecordingCudaRunner:
        return self._keep(RecordingCudaRunner.load(config, host, NUM_COMPILERS))

    def twofold(self, config: EngineConfig, host: memoryview) -> TwofoldRunner:
        return self._keep(TwofoldRunner.load(config, host, NUM_COMPILERS))

    def bare(self, config: EngineConfig, host: memoryview) -> CudaRunner:
        """As a service has it."""
        return self._keep(CudaRunner.load(config, host, NUM_COMPILERS))

    def eager(self, config: EngineConfig, host: memoryview) -> RecordingCudaRunner:
        """Without graphs."""
        spec = BackboneSpec.load(config.model.path)
        weights = load_weights(config.model.path, spec, DTYPES[config.model.dtype])
        return self._keep(RecordingCudaRunner(config, host, spec, weights, captures=False))

    def close(self) -> None:
        for runner in self.made:
            runner.close()

    def _keep(self, runner):
        self.made.append(runner)
        return runner


def bits(values: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that NaN equals NaN and 0 is not -0."""
    return values.view(torch.int16 if values.itemsize == 2 else torch.int32)


def prompts(lengths, seed=1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 384, (n,), generator=generator).tolist() for n in lengths]


def driver_of(model: TinyModel, make, *, dtype: str = "float32", **options) -> Driver:
    """A driver whose table holds the model's adapters, in order."""
    driver = Driver.on(model.folder, make, dtype=dtype, **options)
    for index, adapter in enumerate(model.adapters.values()):
        driver.put_adapter(index, adapter, DTYPES[dtype])
    return driver


def begin(
    driver: Driver, model: TinyModel, lengths, sampling=GREEDY
) -> list[tuple[str | None, Sequence]]:
    """[(adapter name or None, sequence)], base and adapters in turn."""
    names = [None, *model.adapters]
    return [
        (names[i % len(names)], driver.begin(prompt, i % len(names) - 1, sampling))
        for i, prompt in enumerate(prompts(lengths))
    ]


def check(model: TinyModel, name: str | None, sequence: Sequence, logits: torch.Tensor) -> None:
    prompt = list(sequence.request.prompt)
    model.check(name, prompt, sequence.tokens[len(prompt) :], logits)
