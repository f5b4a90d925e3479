"""Drives a runner by plans made by hand: which sequences, how many tokens, which pages."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.adapters.weights import Adapter, pack
from engine.config import EngineConfig, MemoryConfig, ModelConfig, ScheduleConfig, StoreConfig
from engine.plan import NO_ADAPTER, Move, Span, StepPlan, StepResult, TableEntry
from engine.sequence import Sequence
from engine.types import Request, SamplingParams, Tenant
from tests.support.recording import RecordingRunner

PAGE_TOKENS = 4
HOST_BYTES = 8 << 20


def runner_config(
    path: str, *, dtype: str = "float32", num_rows: int = 32, arena_bytes: int = 8 << 20
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(path=str(path), dtype=dtype, max_model_len=256),
        MemoryConfig(arena_bytes, HOST_BYTES, PAGE_TOKENS),
        StoreConfig("file:///nowhere", "/nowhere"),
        ScheduleConfig(max_seqs=num_rows, max_step_tokens=256),
    )


MakeRunner = Callable[[EngineConfig, memoryview], RecordingRunner]
"""Or whatever else has RecordingRunner's methods."""


@dataclass
class Driver:
    """Pages are handed out in random order, so that nothing depends on where they lie."""

    runner: RecordingRunner
    host: bytearray
    num_plans: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.free = list(range(1, self.runner.num_pages // 2))
        self.rng.shuffle(self.free)
        self.first_run = self.next_run = self.runner.num_pages // 2
        self.adapter_of: dict[int, int] = {}
        self.new_rows: list[int] = []
        self.rows = 0

    @classmethod
    def on(
        cls,
        folder: object,
        make: MakeRunner = RecordingRunner,
        *,
        host_bytes: int = HOST_BYTES,
        **options: object,
    ) -> Driver:
        """host_bytes: room for the largest adapter."""
        host = bytearray(host_bytes)
        return cls(make(runner_config(folder, **options), memoryview(host)), host)

    def begin(
        self,
        prompt: list[int],
        adapter: int = NO_ADAPTER,
        sampling: SamplingParams = SamplingParams(temperature=0.0),  # noqa: B008 (frozen)
    ) -> Sequence:
        request = Request(
            f"r{self.rows}", Tenant("t"), None, tuple(prompt), 1000, sampling=sampling
        )
        sequence = Sequence(request, 0.0, tokens=list(prompt), row=self.rows)
        self.adapter_of[self.rows] = adapter
        self.new_rows.append(self.rows)
        self.rows += 1
        return sequence

    def put_adapter(self, index: int, adapter: Adapter, dtype: torch.dtype = torch.float32) -> None:
        """Upload it to a run of pages and enter it into the table, by a plan of its own."""
        self.plan(entries=(self.upload(index, adapter, dtype),))

    def upload(
        self, index: int, adapter: Adapter, dtype: torch.dtype = torch.float32
    ) -> TableEntry:
        """Upload it to a run of pages. Returns what enters it into the table."""
        layout = adapter.layout()
        num_bytes = layout.num_elements * dtype.itemsize
        pack(adapter, layout, dtype, memoryview(self.host)[:num_bytes])
        upload = self.runner.upload(0, num_bytes, self.next_run)
        while not upload.done():
            pass
        entry = TableEntry(index, self.next_run, layout)
        self.next_run += self.num_run_pages(adapter, dtype)
        return entry

    def num_run_pages(self, adapter: Adapter, dtype: torch.dtype = torch.float32) -> int:
        return -(-adapter.layout().num_elements * dtype.itemsize // self.runner.page_bytes)

    def spans(self, counts: dict[Sequence, int], on_device: bool = False) -> tuple[Span, ...]:
        spans = []
        for sequence, count in counts.items():
            start, end = sequence.num_computed, sequence.num_computed + count
            while len(sequence.pages) * PAGE_TOKENS < end:
                sequence.pages.append(self.free.pop())
            spans.append(
                Span(
                    sequence,
                    sequence.row,
                    start,
                    count,
                    self.adapter_of[sequence.row],
                    samples=end == len(sequence.tokens),
                    token_on_device=on_device,
                    pages=tuple(sequence.pages),
                )
            )
        return tuple(spans)

    def plan(
        self,
        counts: dict[Sequence, int] | None = None,
        moves: tuple[Move, ...] = (),
        entries: tuple[TableEntry, ...] = (),
    ) -> tuple[StepResult, StepPlan]:
        spans = self.spans(counts or {})
        new = tuple(row for row in self.new_rows if any(span.row == row for span in spans))
        self.new_rows = [row for row in self.new_rows if row not in new]
        plan = StepPlan(self.num_plans, spans, moves, entries, new)
        self.num_plans += 1
        return self.runner.launch(plan).wait(), plan

    def step(self, counts: dict[Sequence, int], entries: tuple[TableEntry, ...] = ()) -> None:
        """One pass, committed."""
        result, plan = self.plan(counts, entries=entries)
        for span, tokens in zip(plan.spans, result.tokens, strict=True):
            span.sequence.num_computed += span.num_tokens
            span.sequence.tokens += tokens

    def run(self, sequences: list[Sequence], num_tokens: int, chunk: int = 1000) -> None:
        """Until each has `num_tokens` outputs; prompts in pieces of `chunk`."""
        while counts := {
            s: min(chunk, len(s.tokens) - s.num_computed)
            for s in sequences
            if len(s.tokens) - len(s.request.prompt) < num_tokens
        }:
            self.step(counts)

    def logits(self, sequence: Sequence) -> torch.Tensor:
        """[outputs, V] that its outputs were drawn from."""
        first = len(sequence.request.prompt)
        return self.runner.record.answer(sequence.request.id, first, len(sequence.tokens) - first)
