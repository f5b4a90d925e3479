"""More adapters than there is room for: throughput beside that with room for all, on the CPU.

`python -m engine.bench turns --model PATH --json`

Two engines take turns by a few steps in one process, so that whatever else the machine does meets
them alike; each has a clock that stands still while the other works. Clients come one after the
other: each asks for the next answer, of an adapter drawn uniformly, when it has its last.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from collections import Counter
from collections.abc import Callable

import torch

from engine.adapters.weights import Adapter
from engine.bench.ours import (
    DTYPES,
    GREEDY,
    LoadedEngine,
    bench_config,
    fastest_dtype,
    random_adapter,
)
from engine.config import EngineConfig
from engine.model.spec import BackboneSpec
from engine.types import AdapterRef, Request, Tenant

SLICE_STEPS = 8
"""Steps of one engine before it is the other's turn."""


class WorkingClock:
    """Seconds that its engine has worked."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        since_s = self._since_s
        return self._before_s + (0.0 if since_s is None else time.perf_counter() - since_s)

    def start(self) -> None:
        self._since_s = time.perf_counter()

    def stop(self) -> None:
        self._before_s = self()
        self._since_s = None


class Clients:
    """num clients of one engine; `choose` draws the adapter of a request, `length` its tokens."""

    def __init__(
        self,
        engine: LoadedEngine,
        clock: WorkingClock,
        num: int,
        prompt: tuple[int, ...],
        choose: Callable[[], AdapterRef],
        length: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._prompt = prompt
        self._choose = choose
        self._length = length
        self._count = 0
        self._asked_s: dict[str, float] = {}
        self._tenants = {ref.tenant: Tenant(ref.tenant) for ref in engine.refs}
        self.num_tokens = 0
        self.longest_wait_s = 0.0
        self.served: Counter[str] = Counter()
        for _ in range(num):
            self._ask()

    def steps(self, num: int) -> None:
        self._clock.start()
        for _ in range(num):
            for part in self._engine.step():
                asked_s = self._asked_s.pop(part.request_id, None)
                if asked_s is not None:
                    self.longest_wait_s = max(self.longest_wait_s, self._clock() - asked_s)
                self.num_tokens += len(part.tokens)
                if part.finish is not None:
                    self._ask()
        self._clock.stop()

    def _ask(self) -> None:
        ref = self._choose()
        name = f"request-{self._count}"
        self._count += 1
        self.served[ref.name] += 1
        self._asked_s[name] = self._clock()
        tenant = self._tenants[ref.tenant]
        self._engine.submit(Request(name, tenant, ref, self._prompt, self._length(), GREEDY))


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    torch.manual_seed(0)
    spec = BackboneSpec.load(options.model)
    kinds = tuple(options.targets.split(","))
    adapters = [random_adapter(spec, options.rank, kinds) for _ in range(options.adapters)]
    few = options.adapters // options.times
    runs = {
        "all": _clients(options, adapters, len(adapters)),
        "few": _clients(options, adapters, few),
    }
    for clients, _ in runs.values():
        clients.steps(options.steps // 4)
        clients.num_tokens, clients.longest_wait_s = 0, 0.0
    began_s = {name: clock() for name, (_, clock) in runs.items()}
    for _ in range(options.steps // SLICE_STEPS):
        for clients, _ in runs.values():
            clients.steps(SLICE_STEPS)
    rates = {
        name: clients.num_tokens / (clock() - began_s[name])
        for name, (clients, clock) in runs.items()
    }
    report = {
        "what": f"room for {few} of {options.adapters} adapters, of room for all",
        "of_resident": round(rates["few"] / rates["all"], 3),
        "tok_s": {name: round(rate, 1) for name, rate in rates.items()},
        "longest_wait_s": {n: round(c.longest_wait_s, 2) for n, (c, _) in runs.items()},
        "adapters_served": len(runs["few"][0].served),
        **{k: getattr(options, k) for k in ("batch", "clients", "rank", "dtype", "threads")},
    }
    print(json.dumps(report) if options.json else report, flush=True)


def _clients(
    options: argparse.Namespace, adapters: list[Adapter], num_resident: int
) -> tuple[Clients, WorkingClock]:
    clock, rng = WorkingClock(), random.Random(0)
    engine = LoadedEngine(_config(options, adapters[0], num_resident), adapters, clock)
    clients = Clients(
        engine,
        clock,
        options.clients,
        tuple(range(options.prompt)),
        lambda: rng.choice(engine.refs),
        lambda: rng.randint(options.tokens // 2, options.tokens),
    )
    return clients, clock


def _config(options: argparse.Namespace, adapter: Adapter, num_resident: int) -> EngineConfig:
    """The KV reserve is what all rows need, so that adapters have room for so many and no more."""
    row_tokens = options.prompt + options.tokens
    config = bench_config(
        options.model, options.dtype, options.threads, options.batch, row_tokens * options.batch
    )
    memory = config.memory
    itemsize = DTYPES[options.dtype].itemsize
    spec = BackboneSpec.load(options.model)
    page_bytes = spec.kv_bytes_per_token(itemsize) * memory.page_tokens
    pages = -(-adapter.layout().num_elements * itemsize // page_bytes)
    row_pages = -(-row_tokens // memory.page_tokens)
    kv_pages = row_pages * options.batch
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, max_model_len=kv_pages * memory.page_tokens),
        memory=dataclasses.replace(
            memory, arena_bytes=(1 + kv_pages + num_resident * pages) * page_bytes
        ),
    )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.bench turns", description=__doc__)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--times", type=int, default=4, help="the working set, over the room")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--targets", default="q_proj,v_proj")
    parser.add_argument("--dtype", choices=list(DTYPES), default=fastest_dtype())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser.parse_args(arguments)
