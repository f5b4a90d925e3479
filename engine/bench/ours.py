"""An engine in this process, with random adapters and a loader that answers at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator

import torch

from engine.adapters.layout import AdapterLayout
from engine.adapters.weights import Adapter, ModuleWeights, pack
from engine.config import (
    Dtype,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ScheduleConfig,
    StoreConfig,
)
from engine.cpu_runner import CpuRunner
from engine.engine import Engine, build_engine
from engine.messages import Load, LoadDone, SequenceOutput
from engine.model.modules import LAYER_MODULES
from engine.model.spec import BackboneSpec
from engine.types import AdapterRef, Request, SamplingParams, Tenant

BASE_REVISION = "bench"
GREEDY = SamplingParams(temperature=0.0)
HOST_BYTES = 64 << 20
# Rows that were read first have so many tokens when the last one begins, at most.
MAX_AHEAD = 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def bench_config(path: str, dtype: Dtype, threads: int, batch: int, max_len: int) -> EngineConfig:
    """Room for twice the batch, and no prefix cache: every prompt is read."""
    spec = BackboneSpec.load(path)
    itemsize = DTYPES[dtype].itemsize
    return EngineConfig(
        ModelConfig(path=path, dtype=dtype, threads=threads, max_model_len=max_len),
        MemoryConfig(
            arena_bytes=spec.kv_bytes_per_token(itemsize) * max_len * batch * 2 + HOST_BYTES,
            host_bytes=HOST_BYTES,
        ),
        StoreConfig("file:///nowhere", "/nowhere"),
        ScheduleConfig(max_seqs=batch, max_step_s=60.0, prefix_cache=False),
    )


def fastest_dtype() -> str:
    """bf16 only where the processor has instructions for it."""
    capable = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if capable else "float32"


def random_adapter(spec: BackboneSpec, rank: int, kinds: tuple[str, ...]) -> Adapter:
    """Rank `rank` on the projections `kinds` of every layer."""
    modules = spec.modules.modules
    ids = [
        layer * len(LAYER_MODULES) + i
        for layer in range(spec.num_layers)
        for i, name in enumerate(LAYER_MODULES)
        if name.rsplit(".", 1)[1] in kinds
    ]
    weights = {
        i: ModuleWeights(
            torch.randn(rank, modules[i].in_features) * 0.02,
            torch.randn(modules[i].out_features, rank) * 0.02,
            2.0,
        )
        for i in ids
    }
    return Adapter(weights, spec.modules)


class LoadedEngine:
    """The whole engine: scheduler, arena, adapter cache and CPU runner, its loads answered at once.

    refs: one of each adapter, all of the tenant "bench"
    """

    def __init__(
        self,
        config: EngineConfig,
        adapters: list[Adapter],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        host = memoryview(bytearray(HOST_BYTES))
        self._host = host
        self._dtype = DTYPES[config.model.dtype]
        self.runner = CpuRunner(config, host)
        self._engine: Engine = build_engine(config, self.runner, BASE_REVISION, clock)
        self._tenant = Tenant("bench")
        self._adapters = {f"digest-{i}": adapter for i, adapter in enumerate(adapters)}
        self.refs = [
            AdapterRef(
                self._tenant.id,
                f"adapter-{i}",
                f"digest-{i}",
                BASE_REVISION,
                (),
                adapter.layout().num_elements,
                0,
                "",
            )
            for i, adapter in enumerate(adapters)
        ]

    def submit(self, request: Request) -> None:
        self._engine.submit(request)

    def step(self) -> tuple[SequenceOutput, ...]:
        """One turn of the loop. Raises RuntimeError where a request ends with an error."""
        output = self._engine.step()
        if output is None:
            return ()
        for load in output.loads:
            self._engine.deliver(self._load(load))
        for part in output.sequences:
            if part.error is not None:
                raise RuntimeError(part.error.message)
        return output.sequences

    def _load(self, load: Load) -> LoadDone:
        adapter = self._adapters[load.ref.digest]
        layout: AdapterLayout = adapter.layout()
        room = self._host[load.host_offset : load.host_offset + load.num_bytes]
        pack(adapter, layout, self._dtype, room)
        return LoadDone(load.load_id, load.ref.key, layout, None, 0.0, False)


class OurEngine(LoadedEngine):
    """With rows that decode side by side."""

    def __init__(self, config: EngineConfig, adapters: list[Adapter]) -> None:
        super().__init__(config, adapters)
        self._numbers = itertools.count()
        self.tokens: list[list[int]] = []

    def decode(
        self, prompts: list[list[int]], refs: list[AdapterRef | None], num_tokens: int
    ) -> Generator[float, None, None]:
        """Read the prompts, then yield the seconds of each step in which every row decodes, as
        long as it is asked. Afterwards `tokens` holds the first `num_tokens` of each answer."""
        ids = [f"request-{next(self._numbers)}" for _ in prompts]
        max_tokens = num_tokens + MAX_AHEAD
        for request_id, prompt, ref in zip(ids, prompts, refs, strict=True):
            self._engine.submit(
                Request(request_id, self._tenant, ref, tuple(prompt), max_tokens, GREEDY)
            )
        told: dict[str, list[int]] = {request_id: [] for request_id in ids}
        try:
            while True:
                start = time.perf_counter()
                parts = self.step()
                seconds = time.perf_counter() - start
                all_decode = len(parts) == len(ids)
                for part in parts:
                    told[part.request_id] += part.tokens
                if all_decode:
                    yield seconds
        finally:
            for request_id in ids:
                self._engine.abort(request_id)
            while self._engine.step() is not None:
                pass
            self.tokens = [tokens[:num_tokens] for tokens in told.values()]
