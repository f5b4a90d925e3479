"""The CPU as a device: executes plans, one after another, when they are launched."""

from __future__ import annotations

import mmap
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.adapters.layout import ALIGN
from engine.adapters.table import AdapterTable
from engine.batch import Batch, PackedBuffer, build_batch
from engine.config import EngineConfig
from engine.device_memory import DeviceMemory
from engine.errors import UnsupportedModel
from engine.model.attention import PagedAttention
from engine.model.backbone import Backbone
from engine.model.spec import BackboneSpec
from engine.model.weights import load_weights
from engine.pass_costs import EXACT, PassCosts
from engine.plan import Move, StepPlan, StepResult
from engine.rows import RowTable
from engine.sampler import Sampler
from kernels.lora import BoundLora, LoraCpu
from kernels.segments import Segments


class Clock(Protocol):
    def __call__(self) -> float:
        """Seconds since any fixed moment."""


@dataclass(frozen=True, slots=True)
class CpuLaunch:
    """A plan already computed: its result is shown by `wait`."""

    plan: StepPlan
    result: StepResult

    def ready(self) -> bool:
        return True

    def wait(self) -> StepResult:
        return self.result


@dataclass(frozen=True, slots=True)
class CpuUpload:
    """A copy in the upload thread."""

    copy: Future[None]

    def done(self) -> bool:
        """Raises what the copy raised."""
        if not self.copy.done():
            return False
        self.copy.result()
        return True


class CpuRunner:
    """plan.Runner over the arena in ordinary memory.

    host is the shared memory that uploads read; None where no adapter is ever uploaded. Loads the
    backbone at once. Raises UnsupportedModel for a model or an arena that can't be served.
    """

    def __init__(
        self, config: EngineConfig, host: memoryview | None, clock: Clock = time.perf_counter
    ) -> None:
        torch.set_num_threads(config.model.threads)
        self.passes: PassCosts = EXACT
        self.spec = BackboneSpec.load(config.model.path)
        dtype = torch.float32 if config.model.dtype == "float32" else torch.bfloat16
        self._page_tokens = config.memory.page_tokens
        self.page_bytes = self._page_tokens * self.spec.kv_bytes_per_token(dtype.itemsize)
        self.num_pages = config.memory.num_pages(self.page_bytes)
        self.memory: DeviceMemory | None = None
        elements = self.page_bytes // dtype.itemsize
        if self.num_pages < 2 or elements % ALIGN:
            raise UnsupportedModel(
                f"memory.arena_bytes {config.memory.arena_bytes} holds {self.num_pages} pages of "
                f"{elements} elements: at least 2 pages of a multiple of {ALIGN} are needed"
            )
        # Private anonymous memory is zero and takes no room until it is written to: a start need
        # not touch gigabytes, and what stays unused costs nothing.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, self.num_pages * self.page_bytes, flags=private)
        self._arena = torch.frombuffer(memory, dtype=dtype).view(self.num_pages, elements)
        self._backbone = Backbone(
            self.spec,
            load_weights(config.model.path, self.spec, dtype),
            config.model.max_model_len,
        )
        self._attention = PagedAttention(self.spec, self._arena.view(-1), self._page_tokens)
        modules = self.spec.modules.modules
        features = np.array([(m.in_features, m.out_features) for m in modules], np.int64)
        self._table = AdapterTable(len(modules), elements)
        self._lora = _LoraOfBatch(LoraCpu(self._arena.view(-1), features), self._table)
        self._rows = RowTable(config.schedule.max_seqs)
        self._last = torch.zeros(config.schedule.max_seqs, dtype=torch.int64)
        self._sampler = Sampler(config.schedule.max_seqs, self.spec.vocab_size)
        self._buffer = PackedBuffer()
        self._host = None if host is None else np.frombuffer(host, np.uint8)
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="upload")
        self._clock = clock

    def launch(self, plan: StepPlan) -> CpuLaunch:
        """Execute the plan: moves, table entries, then the pass."""
        start = self._clock()
        with torch.inference_mode():
            for move in plan.moves:
                move_pages(self._arena, move)
            for entry in plan.entries:
                self._table.set(entry)
            tokens, failed = self._pass(plan)
        result = StepResult(plan, tokens, self._clock() - start, failed)
        return CpuLaunch(plan, result)

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> CpuUpload:
        """Copy a block from host memory to the run at `start_page`, in the upload thread."""
        if self._host is None:
            raise ValueError("no host memory to upload from")
        source = self._host[host_offset : host_offset + num_bytes]
        start = start_page * self.page_bytes
        arena = self._arena.view(-1).view(torch.uint8).numpy()
        return CpuUpload(self._uploads.submit(_copy, source, arena[start : start + num_bytes]))

    def close(self) -> None:
        """Wait for the upload thread and end it."""
        self._uploads.shutdown()

    def page(self, position: int) -> torch.Tensor:
        """The elements of one physical page, in the serving dtype. For tests."""
        return self._arena[position]

    def _batch(self, plan: StepPlan) -> Batch:
        # On the CPU a segment is all rows of an adapter: nothing is gained by cutting it.
        max_rows = max(1, plan.num_tokens)
        return build_batch(plan, self._rows, self._page_tokens, max_rows, self._buffer)

    def _pass(self, plan: StepPlan) -> tuple[tuple[tuple[int, ...], ...], tuple[bool, ...]]:
        """(tokens, failed) of each span."""
        if not plan.spans:
            return (), ()
        batch = self._batch(plan)
        drawn, failed = self._sampler.sample(self._logits(batch), batch.sampling)
        self._last[batch.sampling.rows] = drawn
        results = iter(zip(drawn.tolist(), failed.tolist(), strict=True))
        tokens: list[tuple[int, ...]] = []
        bad: list[bool] = []
        for span in plan.spans:
            token, is_bad = next(results) if span.samples else (0, False)
            tokens.append((token,) if span.samples and not is_bad else ())
            bad.append(is_bad)
        return tuple(tokens), tuple(bad)

    def _logits(self, batch: Batch) -> torch.Tensor:
        self._arena[batch.fresh_pages] = 0
        tokens = batch.tokens
        if len(batch.device_tokens):
            tokens[batch.device_tokens] = self._last[batch.device_rows]
        hidden = self._backbone.hidden(
            tokens,
            batch.positions,
            self._attention.bind(batch),
            self._lora.bind(batch.segments),
        )
        rows = hidden.index_select(0, batch.samples)
        return self._backbone.logits(rows, self._lora.bind(batch.head_segments))


class _LoraOfBatch:
    """The adapter term of a batch, kept while the same rows hold the same adapters.

    Decoding batches differ only when a sequence begins or ends; their lanes are made once.
    """

    def __init__(self, lora: LoraCpu, table: AdapterTable) -> None:
        self._lora = lora
        self._table = table
        self._version = -1
        self._bound: dict[tuple[int, bytes, bytes], BoundLora] = {}

    def bind(self, segments: Segments) -> BoundLora:
        if self._version != self._table.version or len(self._bound) > 8:
            self._bound.clear()
            self._version = self._table.version
        key = (
            segments.num_rows,
            segments.rows.numpy().tobytes(),
            np.repeat(segments.adapters.numpy(), np.diff(segments.starts.numpy())).tobytes(),
        )
        if key not in self._bound:
            self._bound[key] = self._lora.bind(segments, self._table.tensor)
        return self._bound[key]


def move_pages(arena: torch.Tensor, move: Move) -> None:
    """Copy whole pages within `arena` [pages, elements]; overlapping ranges in pieces no longer
    than their shift, from the end that is overwritten last."""
    shift = abs(move.target - move.source)
    if shift == 0:
        return
    starts = range(0, move.num_pages, shift)
    for start in starts if move.target < move.source else reversed(starts):
        # Going up, the last piece goes first.
        end = min(start + shift, move.num_pages)
        arena[move.target + start : move.target + end] = arena[
            move.source + start : move.source + end
        ]


def _copy(source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8]) -> None:
    """numpy, since it copies on this thread alone and holds no lock of the interpreter."""
    np.copyto(target, source)
