"""A whole engine on a tiny real model: every sampled logit is kept, loads are answered at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from engine.adapters.weights import pack
from engine.config import EngineConfig, MemoryConfig, ModelConfig, ScheduleConfig, StoreConfig
from engine.engine import build_engine
from engine.messages import Load, LoadDone, Output
from engine.model.spec import BackboneSpec
from engine.types import AdapterRef, FinishReason, Request, SamplingParams, Tenant
from tests.support.recording import RecordingRunner
from tests.support.tiny_models import TinyModel

BASE = "revision"
GREEDY = SamplingParams(temperature=0.0)
PAGE_TOKENS = 4
HOST_BYTES = 8 << 20


@dataclass
class Told:
    """A request and all that it was told."""

    request: Request
    adapter: str | None
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    num_cached: int = 0


class RealEngine:
    def __init__(
        self,
        model: TinyModel,
        *,
        num_pages: int,
        depth: int = 0,
        max_model_len: int = 128,
        max_move_bytes: int = 1 << 20,
        make: Callable[[EngineConfig, memoryview], RecordingRunner] | None = None,
        **schedule: object,
    ) -> None:
        spec = BackboneSpec.load(model.folder)
        config = EngineConfig(
            ModelConfig(path=str(model.folder), max_model_len=max_model_len),
            MemoryConfig(
                num_pages * PAGE_TOKENS * spec.kv_bytes_per_token(4),
                HOST_BYTES,
                PAGE_TOKENS,
                max_move_bytes,
            ),
            StoreConfig("file:///nowhere", "/nowhere"),
            ScheduleConfig(
                **{"max_seqs": 8, "max_step_tokens": 24, "max_step_s": 60.0, **schedule},
                depth=depth,
            ),
        )
        self.model = model
        self.host = memoryview(bytearray(HOST_BYTES))
        self.runner = (make or RecordingRunner)(config, self.host)
        ticks = count()
        self.engine = build_engine(config, self.runner, BASE, lambda: next(ticks) * 1e-3)
        self.told: dict[str, Told] = {}

    def ref(self, adapter: str, version: int) -> AdapterRef:
        num_elements = self.model.adapters[adapter].layout().num_elements
        return AdapterRef("t", adapter, f"{adapter}-{version}", BASE, (), num_elements, 0, "")

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        adapter: str | None = None,
        *,
        max_tokens: int = 16,
        tenant: str = "t",
        version: int = 0,
        sampling: SamplingParams = GREEDY,
    ) -> None:
        """Versions of an adapter are the same weights under other digests."""
        ref = None if adapter is None else self.ref(adapter, version)
        request = Request(request_id, Tenant(tenant), ref, tuple(prompt), max_tokens, sampling)
        self.told[request_id] = Told(request, adapter)
        self.engine.submit(request)

    def run(self, max_steps: int = 5000) -> None:
        """Until every request has its end; the invariants hold after each step."""
        for _ in range(max_steps):
            output = self.engine.step()
            self.engine.scheduler.check()
            if output is not None:
                self._take(output)
            elif all(told.finish for told in self.told.values()):
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def check_answers(self) -> None:
        """Every request's tokens and logits are the oracle's."""
        for request_id, told in self.told.items():
            assert told.finish is FinishReason.LENGTH
            prompt = list(told.request.prompt)
            logits = self.runner.record.answer(request_id, len(prompt), told.request.max_tokens)
            self.model.check(told.adapter, prompt, told.tokens, logits)

    def _take(self, output: Output) -> None:
        for load in output.loads:
            self.engine.deliver(self._load(load))
        for part in output.sequences:
            told = self.told[part.request_id]
            assert told.finish is None
            told.tokens += part.tokens
            told.finish = part.finish
            told.num_cached += part.num_cached

    def _load(self, load: Load) -> LoadDone:
        adapter = self.model.adapters[load.ref.name]
        layout = adapter.layout()
        room = self.host[load.host_offset : load.host_offset + load.num_bytes]
        pack(adapter, layout, torch.float32, room)
        return LoadDone(load.load_id, load.ref.key, layout, None, 0.0, False)


def with_moves(
    model: TinyModel,
    prompts: Sequence[list[int]],
    *,
    depth: int,
    make: Callable[[EngineConfig, memoryview], RecordingRunner] | None = None,
) -> RealEngine:
    """One that has answered these prompts, each right, while adapters came and went: there is room
    for some at a time, with holes that only moves can join, a few pages a step."""
    page_bytes = PAGE_TOKENS * model.spec.kv_bytes_per_token(4)
    largest = -(-model.adapters["r8"].layout().num_elements * 4 // page_bytes)
    engine = RealEngine(
        model,
        num_pages=3 * largest + 64 // PAGE_TOKENS + 10,
        depth=depth,
        max_model_len=64,
        max_move_bytes=4 * page_bytes,
        make=make,
    )
    for i, prompt in enumerate(prompts):
        name = (None, "r4", "r8", "r4")[i % 4]
        engine.submit(f"r{i}", prompt, name, max_tokens=6 + i % 11, version=i * 7 % 5)
    engine.run(max_steps=100_000)
    engine.check_answers()
    return engine
