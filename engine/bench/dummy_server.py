"""An engine on the GPU in this process with dummy weights, and the time that each step took."""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median

import numpy as np
import torch

from engine.bench.dummy import dummy_layout, dummy_spec, dummy_weights, random_block
from engine.config import (
    MAX_STEP_S,
    AdapterConfig,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ScheduleConfig,
    StoreConfig,
)
from engine.cuda_runner import CudaRunner
from engine.engine import Engine, build_engine
from engine.messages import Load, LoadDone, Output
from engine.model.spec import BackboneSpec
from engine.plan import Launch, Runner, StepPlan, StepResult, Upload
from engine.types import AdapterRef, Request, SamplingParams, Tenant

BASE_REVISION = "dummy"
DTYPE = torch.bfloat16
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a dummy server is made for. max_len: tokens of a sequence. max_rank: of adapters
    that it may serve."""

    shape: str
    max_seqs: int
    max_len: int
    rank: int
    targets: str
    max_rank: int
    max_step_tokens: int = 2048
    max_step_s: float = MAX_STEP_S["cuda"]
    prefill_steps: int = ScheduleConfig().prefill_steps
    arena_bytes: int = 64 << 30
    host_bytes: int = 8 << 30


@dataclass(frozen=True, slots=True)
class Step:
    """device_s: on the device. at_s: when its tokens were on the host. replayed: from a graph."""

    num_rows: int
    num_tokens: int
    replayed: bool
    device_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    launch: Launch
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
        self.steps.append(
            Step(len(plan.spans), plan.num_tokens, result.replayed, result.seconds, now)
        )
        return result


class TimedRunner:
    """plan.Runner that notes each step. num_pages: that are shown of the `most_pages` there are."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.num_pages = self.most_pages = runner.num_pages
        self.page_bytes = runner.page_bytes
        self.memory = runner.memory
        self.passes = runner.passes
        self.steps: list[Step] = []

    def launch(self, plan: StepPlan) -> TimedLaunch:
        return TimedLaunch(self._runner.launch(plan), self.steps)

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> Upload:
        return self._runner.upload(host_offset, num_bytes, start_page)

    def close(self) -> None:
        self._runner.close()


@dataclass
class Served:
    """What a run took, and of each request, since the run began: when it was due, when its first
    and last tokens came. gaps_s: between two tokens of a request."""

    seconds: float = 0.0
    due_s: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    latest_s: dict[str, float] = field(default_factory=dict)
    gaps_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    steps: list[Step] = field(default_factory=list)

    def step_gaps_s(self) -> list[float]:
        """Seconds between the tokens of each two steps in a row."""
        return [b.at_s - a.at_s for a, b in zip(self.steps, self.steps[1:], strict=False)]

    def graph_share(self) -> float:
        """Of the steps, those replayed from a graph."""
        return sum(step.replayed for step in self.steps) / len(self.steps)

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


MakeRunner = Callable[[EngineConfig, memoryview], Runner]


def on_gpu(spec: BackboneSpec) -> MakeRunner:
    """What makes a runner with random weights, which are on the GPU when this returns."""
    weights = dummy_weights(spec, DTYPE)
    torch.cuda.synchronize()
    return lambda config, host: CudaRunner(config, host, spec, weights)


class DummyServer:
    """startup_s: what making the runner took, weights excluded."""

    def __init__(
        self, sizes: Sizes, prepare: Callable[[BackboneSpec], MakeRunner] = on_gpu
    ) -> None:
        self.spec = dummy_spec(sizes.shape)
        make = prepare(self.spec)
        self.layout = dummy_layout(self.spec, sizes.rank, sizes.targets)
        self._host = mmap.mmap(-1, sizes.host_bytes)
        self._block = random_block(self.layout.num_elements * DTYPE.itemsize, DTYPE)
        self.config = EngineConfig(
            ModelConfig("", "cuda", "bfloat16", max_model_len=sizes.max_len),
            MemoryConfig(sizes.arena_bytes, sizes.host_bytes),
            StoreConfig("file:///nowhere", "/nowhere"),
            ScheduleConfig(
                max_seqs=sizes.max_seqs,
                max_step_tokens=sizes.max_step_tokens,
                max_step_s=sizes.max_step_s,
                prefill_steps=sizes.prefill_steps,
                depth=1,
                prefix_cache=False,
            ),
            adapters=AdapterConfig(max_rank=max(sizes.rank, sizes.max_rank), max_loads=8),
        )
        start = time.perf_counter()
        runner = make(self.config, memoryview(self._host))
        self.startup_s = time.perf_counter() - start
        self.runner = TimedRunner(runner)
        self.engine = self._build(self.config)
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._loads: list[Future[LoadDone]] = []
        self._num_requests = 0
        self._rng = np.random.default_rng(0)

    def ref(self, number: int) -> AdapterRef:
        digest = f"dummy-{self.layout.num_elements}-{number}"
        size = self.layout.num_elements
        return AdapterRef("bench", f"adapter-{number}", digest, BASE_REVISION, (), size, 0, "")

    def request(
        self,
        adapter: int | None,
        num_input: int,
        num_output: int,
        sampling: SamplingParams = GREEDY,
    ) -> Request:
        """A random prompt, answered to the last token."""
        self._num_requests += 1
        prompt = self._rng.integers(0, self.spec.vocab_size, num_input)
        ref = None if adapter is None else self.ref(adapter)
        name = f"request-{self._num_requests}"
        return Request(name, Tenant("bench"), ref, tuple(prompt.tolist()), num_output, sampling)

    def warm(self, num_adapters: int) -> None:
        """Bring adapters 0 .. num_adapters - 1 to the device."""
        self.serve([self.request(i, 4, 2) for i in range(num_adapters)])

    def begin_anew(self, num_pages: int | None = None, max_len: int | None = None) -> None:
        """Nothing is resident any more. num_pages: that the engine may use of the arena, max_len:
        tokens for whose KV it keeps room from adapters; None: as at the start."""
        self.runner.num_pages = num_pages or self.runner.most_pages
        model = replace(self.config.model, max_model_len=max_len or self.config.model.max_model_len)
        self.engine = self._build(replace(self.config, model=model))

    def serve(
        self,
        requests: list[Request],
        due_s: list[float] | None = None,
        following: Iterable[Request] = (),
    ) -> Served:
        """Submit each when it is due, all at once by default, and answer them. Ascending.

        following: whenever one has ended, the next of these is submitted.
        """
        due_s = due_s or [0.0] * len(requests)
        num_left, follow = len(requests), iter(following)
        served = Served(due_s={r.id: due for r, due in zip(requests, due_s, strict=True)})
        waiting = deque(zip(due_s, requests, strict=True))
        self.runner.steps.clear()
        start = time.perf_counter()
        while num_left:
            while waiting and waiting[0][0] <= time.perf_counter() - start:
                self.engine.submit(waiting.popleft()[1])
            self._deliver_loads()
            output = self.engine.step()
            if output is None:
                continue
            num_ended = self._take(output, served, time.perf_counter() - start)
            num_left -= num_ended
            for request in islice(follow, num_ended):
                served.due_s[request.id] = time.perf_counter() - start
                self.engine.submit(request)
                num_left += 1
        served.seconds = time.perf_counter() - start
        served.steps = list(self.runner.steps)
        return served

    def _build(self, config: EngineConfig) -> Engine:
        return build_engine(config, self.runner, BASE_REVISION, time.perf_counter)

    def _take(self, output: Output, served: Served, now: float) -> int:
        """How many requests it ends."""
        self._loads += [self._loader.submit(self._load, load) for load in output.loads]
        for part in output.sequences:
            if part.error is not None:
                raise RuntimeError(part.error.message)
            served.num_tokens += len(part.tokens)
            if part.request_id in served.latest_s:
                served.gaps_s.append(now - served.latest_s[part.request_id])
            served.first_s.setdefault(part.request_id, now)
            served.latest_s[part.request_id] = now
        return sum(part.finish is not None for part in output.sequences)

    def _deliver_loads(self) -> None:
        for load in [load for load in self._loads if load.done()]:
            self._loads.remove(load)
            self.engine.deliver(load.result())

    def _load(self, load: Load) -> LoadDone:
        """In a thread, which copies without holding the interpreter."""
        room = np.frombuffer(self._host, np.uint8)[load.host_offset :][: load.num_bytes]
        room[:] = self._block
        return LoadDone(load.load_id, load.ref.key, self.layout, None, 0.0, False)
