"""An engine on the GPU in this process with dummy weights, and the time that each step took."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch

from engine.bench.dummy import dummy_layout, dummy_spec, dummy_weights, random_block
from engine.config import (
    AdapterConfig,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ScheduleConfig,
    StoreConfig,
)
from engine.cuda_runner import CudaLaunch, CudaRunner
from engine.device_uploads import DeviceUpload
from engine.engine import build_engine
from engine.messages import Load, LoadDone, Output
from engine.plan import StepPlan, StepResult
from engine.types import AdapterRef, Request, SamplingParams, Tenant

BASE_REVISION = "dummy"
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a dummy server is made for. max_len: tokens of a sequence."""

    shape: str
    max_seqs: int
    max_len: int
    rank: int
    targets: str
    max_step_tokens: int = 2048
    arena_bytes: int = 64 << 30
    host_bytes: int = 8 << 30


@dataclass(frozen=True, slots=True)
class Step:
    """device_s: on the device. at_s: when its tokens were on the host."""

    num_rows: int
    num_tokens: int
    device_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    launch: CudaLaunch
    steps: list[Step]

    @property
    def plan(self) -> StepPlan:
        return self.launch.plan

    def ready(self) -> bool:
        return self.launch.ready()

    def wait(self) -> StepResult:
        result = self.launch.wait()
        plan = result.plan
        now = time.perf_counter()
        self.steps.append(Step(len(plan.spans), plan.num_tokens, result.seconds, now))
        return result


class TimedRunner:
    """plan.Runner that notes each step."""

    def __init__(self, runner: CudaRunner) -> None:
        self._runner = runner
        self.num_pages, self.page_bytes = runner.num_pages, runner.page_bytes
        self.steps: list[Step] = []

    def launch(self, plan: StepPlan) -> TimedLaunch:
        return TimedLaunch(self._runner.launch(plan), self.steps)

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> DeviceUpload:
        return self._runner.upload(host_offset, num_bytes, start_page)

    def close(self) -> None:
        self._runner.close()


@dataclass
class Served:
    """What a run took. ended_s, first_s: of each request, since the run began."""

    seconds: float = 0.0
    first_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    steps: list[Step] = field(default_factory=list)

    def decode_ms(self, rows: int) -> tuple[float, float]:
        """Median (between two steps on the host, on the device) of steps in which `rows` rows
        decode and nothing else happens."""
        pairs = list(zip(self.steps, self.steps[1:], strict=False))
        full = [
            (after.at_s - before.at_s, after.device_s)
            for before, after in pairs
            if all(step.num_rows == step.num_tokens == rows for step in (before, after))
        ]
        if not full:
            raise ValueError(f"no two steps in a row decoded {rows} rows")
        return 1e3 * median(host for host, _ in full), 1e3 * median(device for _, device in full)


class DummyServer:
    """startup_s: of the runner, the weights being on the GPU already."""

    def __init__(self, sizes: Sizes) -> None:
        self.spec = dummy_spec(sizes.shape)
        weights = dummy_weights(self.spec, DTYPE)
        torch.cuda.synchronize()
        self.layout = dummy_layout(self.spec, sizes.rank, sizes.targets)
        self._host = mmap.mmap(-1, sizes.host_bytes)
        self._block = random_block(self.layout.num_elements * DTYPE.itemsize, DTYPE)
        config = EngineConfig(
            ModelConfig("", "cuda", "bfloat16", max_model_len=sizes.max_len),
            MemoryConfig(sizes.arena_bytes, sizes.host_bytes),
            StoreConfig("file:///nowhere", "/nowhere"),
            ScheduleConfig(
                max_seqs=sizes.max_seqs,
                max_step_tokens=sizes.max_step_tokens,
                depth=1,
                prefix_cache=False,
            ),
            adapters=AdapterConfig(max_rank=sizes.rank, max_loads=8),
        )
        start = time.perf_counter()
        runner = CudaRunner(config, memoryview(self._host), self.spec, weights)
        self.startup_s = time.perf_counter() - start
        self.runner = TimedRunner(runner)
        self.engine = build_engine(config, self.runner, BASE_REVISION, time.perf_counter)
        self._num_requests = 0
        self._rng = np.random.default_rng(0)

    def ref(self, number: int) -> AdapterRef:
        digest = f"dummy-{number}"
        size = self.layout.num_elements
        return AdapterRef("bench", f"adapter-{number}", digest, BASE_REVISION, (), size, 0, "")

    def request(self, adapter: int | None, num_input: int, num_output: int) -> Request:
        """A random prompt, answered greedily to the last token."""
        self._num_requests += 1
        prompt = self._rng.integers(0, self.spec.vocab_size, num_input)
        ref = None if adapter is None else self.ref(adapter)
        greedy = SamplingParams(temperature=0.0)
        name = f"request-{self._num_requests}"
        return Request(name, Tenant("bench"), ref, tuple(prompt.tolist()), num_output, greedy)

    def warm(self, num_adapters: int) -> None:
        """Bring adapters 0 .. num_adapters - 1 to the device."""
        self.serve([self.request(i, 4, 2) for i in range(num_adapters)])

    def serve(self, requests: list[Request]) -> Served:
        """Submit all at once and answer them."""
        served = Served()
        self.runner.steps.clear()
        start = time.perf_counter()
        for request in requests:
            self.engine.submit(request)
        while len(served.ended_s) < len(requests):
            output = self.engine.step()
            if output is not None:
                self._take(output, served, time.perf_counter() - start)
        served.seconds = time.perf_counter() - start
        served.steps = list(self.runner.steps)
        return served

    def _take(self, output: Output, served: Served, now: float) -> None:
        for load in output.loads:
            self.engine.deliver(self._load(load))
        for part in output.sequences:
            if part.error is not None:
                raise RuntimeError(part.error.message)
            served.num_tokens += len(part.tokens)
            served.first_s.setdefault(part.request_id, now)
            if part.finish:
                served.ended_s[part.request_id] = now

    def _load(self, load: Load) -> LoadDone:
        room = np.frombuffer(self._host, np.uint8)[load.host_offset :][: load.num_bytes]
        room[:] = self._block
        return LoadDone(load.load_id, load.ref.key, self.layout, None, 0.0, False)
