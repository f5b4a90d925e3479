"""One NVIDIA GPU as a device: a step is one packed copy and replays of captured graphs.

`launch` enqueues and never waits. On the compute stream, in order: the plan's moves, its table
entries, the packed copy, the pass, the sampler, the copy of its tokens back. Uploads run on a
stream of their own. A failed CUDA call raises out of `launch`, `wait` or `done`, and the core ends.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

import torch

from engine.buckets import PassShape
from engine.config import EngineConfig
from engine.device_arena import DTYPES, DeviceArena
from engine.device_memory import REMEDY, DeviceMemory
from engine.device_pass import DevicePass, Replay
from engine.device_uploads import DeviceUpload, DeviceUploads
from engine.errors import DeviceMemoryShort, UnsupportedDevice
from engine.graphs import Graphs
from engine.model.spec import BackboneSpec
from engine.model.weights import Weights, load_weights
from engine.pass_costs import EXACT, PassCosts
from engine.plan import StepPlan, StepResult
from engine.rehearsal import Rehearsal
from kernels.compiling import Compilers

log = logging.getLogger("loraplex.device")

LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A plan on the device. tokens [N] pinned: what it draws, there once `end` has passed."""

    plan: StepPlan
    tokens: torch.Tensor
    start: torch.cuda.Event
    end: torch.cuda.Event
    replayed: bool

    def ready(self) -> bool:
        return bool(self.end.query())  # type: ignore[no-untyped-call]

    def wait(self) -> StepResult:
        self.end.synchronize()
        seconds = self.start.elapsed_time(self.end) * 1e-3
        return step_result(self.plan, self.tokens.tolist(), seconds, self.replayed)


class CudaRunner:
    """plan.Runner over an arena in GPU memory. Everything is allocated, compiled and captured when
    this returns; weights may come from any device.

    host is the shared memory that uploads read; None where no adapter is ever uploaded. captures:
    False enqueues each step afresh, for tests. num_compilers: processes, see `Compilers`. memory:
    who has how much of the GPU's. Raises UnsupportedModel for an arena that can't be served,
    DeviceMemoryShort, UnsupportedDevice.
    """

    def __init__(
        self,
        config: EngineConfig,
        host: memoryview | None,
        spec: BackboneSpec,
        weights: Weights,
        captures: bool = True,
        num_compilers: int | None = None,
    ) -> None:
        torch.set_num_threads(config.model.threads)
        device = cuda_device()
        meter = _Meter(device)
        # Its processes start while all else is made.
        with Compilers(num_compilers) if captures else contextlib.nullcontext() as compilers:
            arena = self._make_pass(config, spec, weights, device, meter)
            self._replay: Replay = self._pass
            if compilers is not None:
                self._replay = _Captured(self._pass, self._stream, compilers)
        meter.note()
        memory = arena.settle(meter.read(arena.taken_bytes))
        self.memory: DeviceMemory | None = memory
        self._pass.arena = arena.pages
        self.num_pages, self.page_bytes = len(arena.pages), arena.page_bytes
        self._uploads = DeviceUploads(arena.pages.view(-1).view(torch.uint8), host)
        torch.cuda.synchronize()
        self.passes = self._measure(config) if captures else EXACT
        log.info(
            "%s, the arena %d pages of %d bytes.",
            memory.describe(),
            self.num_pages,
            self.page_bytes,
        )

    def _make_pass(
        self,
        config: EngineConfig,
        spec: BackboneSpec,
        weights: Weights,
        device: torch.device,
        meter: _Meter,
    ) -> DeviceArena:
        """All but graphs: weights, then the arena, the pass and what else it needs."""
        weights = weights.to(device)
        meter.note()
        arena = DeviceArena(config, spec, device)
        # A slot is free again when the plan before the one in flight has been waited for.
        self._num_slots = config.schedule.depth + 2
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pass = DevicePass(config, spec, weights, arena.pages, self._num_slots)
        self._results = torch.zeros(
            self._num_slots, config.schedule.max_seqs, dtype=torch.int64, pin_memory=True
        )
        self._ends: list[torch.cuda.Event | None] = [None] * self._num_slots
        meter.note()
        return arena

    @classmethod
    def load(
        cls, config: EngineConfig, host: memoryview | None, num_compilers: int | None = None
    ) -> CudaRunner:
        """With the model at `config.model.path`. Raises besides UnsupportedModel for a model that
        can't be served."""
        device = cuda_device()
        spec = BackboneSpec.load(config.model.path)
        weights = load_weights(config.model.path, spec, DTYPES[config.model.dtype])
        free, total = torch.cuda.mem_get_info(device)
        try:
            return cls(config, host, spec, weights, num_compilers=num_compilers)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryShort(
                f"{torch.cuda.get_device_name(device)}: {free} of {total} bytes were free, and that"
                f" is too little for the model's weights, workspaces, graphs and arena. {REMEDY}"
            ) from error

    def launch(self, plan: StepPlan) -> CudaLaunch:
        """Enqueue the plan: moves, table entries, then the pass."""
        slot = plan.id % self._num_slots
        previous = self._ends[slot]
        if previous is not None:
            # Long over in the engine's loop, which waits for a plan before it launches two more.
            previous.synchronize()
        filled = self._pass.fill(plan, slot)
        num = 0 if filled is None else len(filled.sampled)
        tokens = self._results[slot, :num]
        start, end = _event(), _event()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            start.record(self._stream)
            self._pass.enqueue(plan, filled, slot, self._replay)
            tokens.copy_(self._pass.sampler.result[:num], non_blocking=True)
            end.record(self._stream)
        self._ends[slot] = end
        replayed = filled is not None and self._replay is not self._pass
        return CudaLaunch(plan, tokens, start, end, replayed)

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> DeviceUpload:
        """Copy a block from host memory to the run at `start_page`, on the copy stream."""
        return self._uploads.upload(host_offset, num_bytes, start_page * self.page_bytes)

    def close(self) -> None:
        """Wait for the device and let go of the shared memory."""
        self._stream.synchronize()
        self._uploads.close()

    def _measure(self, config: EngineConfig) -> PassCosts:
        """What the captured passes cost."""
        rehearsal = Rehearsal(
            self, self.num_pages, config.memory.page_tokens, config.model.max_model_len
        )
        return rehearsal.measure(self._pass.buckets.rows, self._pass.buckets.tokens)

    def latest_logits(self, num: int) -> torch.Tensor:
        """[num, V] float32 of the last launch's first samples. For tests."""
        torch.cuda.synchronize()
        return self._pass.backbone.logits[:num].float().cpu()

    def page(self, position: int) -> torch.Tensor:
        """The elements of one physical page, in the serving dtype. For tests."""
        torch.cuda.synchronize()
        return self._pass.arena[position].cpu()


class _Meter:
    """Reads what weights, workspaces and graphs take of the GPU's memory, in that order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[int] = []
        self.note()

    def note(self) -> None:
        """Waits for the GPU."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        self._free.append(torch.cuda.mem_get_info(self._device)[0])

    def read(self, arena_bytes: int) -> DeviceMemory:
        """arena_bytes: taken among the workspaces."""
        start, weights, workspaces, graphs = self._free
        return DeviceMemory(
            device=torch.cuda.get_device_name(self._device),
            total_bytes=torch.cuda.mem_get_info(self._device)[1],
            free_bytes=start,
            weights_bytes=start - weights,
            workspace_bytes=weights - workspaces - arena_bytes,
            graph_bytes=workspaces - graphs,
        )


class _Captured:
    """The graphs of a pass."""

    def __init__(self, of: DevicePass, stream: torch.cuda.Stream, compilers: Compilers) -> None:
        shapes = of.buckets.shapes()
        samples = sorted({shape.samples for shape in shapes}, reverse=True)

        def enqueue_all() -> None:
            for shape in shapes:
                of.forward(shape)
            for num in samples:
                of.add_head_term(num)
                of.choose(num)

        with torch.inference_mode(), torch.cuda.stream(stream):
            compilers.compile(enqueue_all)
        self._passes: Graphs[PassShape] = Graphs(stream)
        self._head_terms: Graphs[int] = Graphs(stream)
        self._choices: Graphs[int] = Graphs(stream)
        self._passes.capture(shapes, of.forward)
        self._head_terms.capture(samples, of.add_head_term)
        self._choices.capture(samples, of.choose)

    def forward(self, shape: PassShape) -> None:
        self._passes.replay(shape)

    def add_head_term(self, num: int) -> None:
        self._head_terms.replay(num)

    def choose(self, num: int) -> None:
        self._choices.replay(num)


def cuda_device() -> torch.device:
    """The GPU that this process was given. Raises UnsupportedDevice, with the remedy."""
    if torch.version.cuda is None:
        raise UnsupportedDevice(
            f"replica.device is cuda, but torch {torch.__version__} is a build without CUDA."
            " Make the environment anew without TORCH_INDEX (`make clean`), or serve on `cpu`."
        )
    if not torch.cuda.is_available():
        raise UnsupportedDevice(
            f"replica.device is cuda, but torch {torch.__version__}, built for CUDA"
            f" {torch.version.cuda}, finds no GPU that it can use. Does `nvidia-smi` show one, with"
            " a driver for that CUDA? Update the driver, or serve on `cpu`."
        )
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        raise UnsupportedDevice(
            f"{torch.cuda.get_device_name(device)} has compute capability"
            f" {capability[0]}.{capability[1]}. Serve on a GPU with"
            f" {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} (Ampere) or newer, or on `cpu`."
        )
    return device


def step_result(
    plan: StepPlan, drawn: list[int], seconds: float, replayed: bool = False
) -> StepResult:
    """drawn: the token of each span that samples, in order; -1 where its row failed."""
    left = iter(drawn)
    tokens: list[tuple[int, ...]] = []
    failed: list[bool] = []
    for span in plan.spans:
        token = next(left) if span.samples else 0
        failed.append(token < 0)
        tokens.append((token,) if span.samples and token >= 0 else ())
    return StepResult(plan, tuple(tokens), seconds, tuple(failed), replayed)


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
