"""Tenants' traffic through the real engine on a virtual clock: who was served how much, and when.

The device is `FakeRunner` with the passes of a large GPU, so that a step costs what it would there;
nothing sleeps and nothing is random but what the caller's generator draws.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.adapters.layout import AdapterLayout
from engine.config import (
    AccountConfig,
    AdapterConfig,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ScheduleConfig,
    StoreConfig,
)
from engine.core_stats import CoreStats
from engine.engine import Engine, build_engine
from engine.fake_runner import KV_BYTES_PER_TOKEN, FakeRunner, counter_token
from engine.messages import Abort, Load, LoadDone, Output, SequenceOutput
from engine.pass_costs import PassCosts
from engine.plan import Span
from engine.types import AdapterRef, FinishReason, Request, Tenant
from tests.support.virtual import VirtualClock

PAGE_TOKENS = 16
PAGE_BYTES = PAGE_TOKENS * KV_BYTES_PER_TOKEN
BASE = "base-revision"
TOKENS = tuple(range(16_384))
STOP = 7  # the token that ends an answer before max_tokens
LOAD_S = 0.05

STEP_S, TOKEN_S, READ_S = 0.009, 25e-6, 1.5e-8
"""About an 8B model on an H200: a step's weights, a token of prompt more, a token of context."""

PASSES = PassCosts(
    mixed=tuple((n, STEP_S + TOKEN_S * n) for n in range(64, 4097, 64)),
    decode=tuple((n, STEP_S + 4e-6 * n) for n in range(8, 513, 8)),
    mixed_read_s=READ_S,
    decode_read_s=READ_S,
)


def settings(
    *,
    rows: int = 64,
    num_pages: int = 20_000,
    max_step_tokens: int = 2048,
    max_step_s: float = 0.06,
    depth: int = 1,
    accounts: AccountConfig | None = None,
    adapters: AdapterConfig | None = None,
    page_tokens: int = PAGE_TOKENS,
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(path="", device="fake", max_model_len=16_384),
        MemoryConfig(num_pages * page_tokens * KV_BYTES_PER_TOKEN, 1 << 28, page_tokens),
        StoreConfig("file:///nowhere", "/nowhere"),
        ScheduleConfig(
            max_seqs=rows, max_step_tokens=max_step_tokens, max_step_s=max_step_s, depth=depth
        ),
        accounts or AccountConfig(),
        adapters or AdapterConfig(),
    )


def adapter(tenant: str, name: str, num_pages: int = 8) -> AdapterRef:
    num_elements = num_pages * PAGE_BYTES // 4
    digest = f"digest-{name}"
    return AdapterRef(tenant, name, digest, BASE, (8,), num_elements, 4 * num_elements, name)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be: it answers `output` tokens, of the max_tokens that it declares."""

    tenant: Tenant
    prompt: int
    output: int
    max_tokens: int
    ref: AdapterRef | None = None


@dataclass(slots=True)
class Job:
    """first_s, end_s: when the first token and the last came. queue_s: how long it waited for a
    row, once it has ended."""

    ask: Ask
    asked_s: float
    first_s: float | None = None
    end_s: float | None = None
    num_output: int = 0
    queue_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        assert self.first_s is not None, "it has no token yet"
        return self.first_s - self.asked_s


@dataclass
class Simulation:
    """served: weighted tokens (w_p 1, w_q 2), by tenant, of what was really computed for it, a
    prompt counted with its first token. preempted work isn't counted twice. hear: is told the
    core's counters, once a second. passes: of the device."""

    config: EngineConfig
    clock: VirtualClock = field(default_factory=VirtualClock)
    jobs: dict[str, Job] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    hear: Callable[[CoreStats], object] = repr
    passes: PassCosts = PASSES

    def __post_init__(self) -> None:
        runner = FakeRunner(
            self.config, self.clock, self.clock.sleep, 0.002, self._draw, passes=self.passes
        )
        self.engine: Engine = build_engine(self.config, runner, BASE, self.clock)
        self._loading: deque[tuple[float, Load]] = deque()
        self._count = 0

    def submit(self, ask: Ask) -> str:
        """Every prompt is its own: no prefix is shared."""
        name = f"{ask.tenant.id}-{self._count}"
        self._count += 1
        prompt = (self._count, *TOKENS[: ask.prompt - 1])
        self.jobs[name] = Job(ask, self.clock())
        tenant = ask.tenant.id
        self.served.setdefault(tenant, 0.0)
        self.waiting[tenant] = self.waiting.get(tenant, 0) + 1
        self.busy[tenant] = self.busy.get(tenant, 0) + 1
        request = Request(name, ask.tenant, ask.ref, prompt, ask.max_tokens, stop_token_ids=(STOP,))
        self.engine.submit(request)
        return name

    def cancel(self, name: str) -> None:
        self.engine.deliver(Abort(name))

    def step(self, until_s: float) -> None:
        """One turn; where nothing is to do, time passes to the next event or `until_s`."""
        while self._loading and self._loading[0][0] <= self.clock():
            self._loaded(self._loading.popleft()[1])
        output = self.engine.step()
        if output is not None:
            self._take(output)
        elif self.engine.idle:
            due_s = self._loading[0][0] if self._loading else until_s
            self.clock.now = max(self.clock.now, min(due_s, until_s))
        else:
            self.clock.sleep(0.0005)

    def backlog(self, asks: Sequence[Callable[[], Ask]], until_s: float, depth: int = 16) -> None:
        """Until then every one of these always has `depth` requests waiting for a first token."""
        while self.clock() < until_s:
            for make in asks:
                ask = make()
                for _ in range(depth - self.waiting.get(ask.tenant.id, 0)):
                    self.submit(ask)
                    ask = make()
            self.step(until_s)

    def play(
        self, arrivals: Iterator[tuple[float, Ask]], until_s: float, max_waiting: int = 1000
    ) -> list[str]:
        """Requests that arrive when they arrive, until then; their names. Those of a tenant that
        has `max_waiting` waiting are turned away, as admission would."""
        names: list[str] = []
        upcoming = next(arrivals, None)
        while self.clock() < until_s:
            while upcoming is not None and upcoming[0] <= self.clock():
                if self.waiting.get(upcoming[1].tenant.id, 0) < max_waiting:
                    names.append(self.submit(upcoming[1]))
                upcoming = next(arrivals, None)
            self.step(until_s if upcoming is None else min(until_s, upcoming[0]))
        return names

    def drain(self, limit_s: float = 1e9) -> None:
        """Until nobody waits or runs."""
        scheduler = self.engine.scheduler
        while (scheduler.num_running or scheduler.num_waiting) and self.clock() < limit_s:
            self.step(limit_s)

    def ttfts(self, names: Sequence[str]) -> list[float]:
        """Seconds to the first token, ascending."""
        return sorted(self.jobs[name].ttft_s for name in names)

    def _draw(self, span: Span) -> int:
        sequence = span.sequence
        job = self.jobs[sequence.id]
        is_last = span.start + span.num_tokens - sequence.num_prompt + 1 >= job.ask.output
        return STOP if is_last else counter_token(span)

    def _loaded(self, load: Load) -> None:
        layout = AdapterLayout((), load.ref.num_elements)
        self.engine.deliver(LoadDone(load.load_id, load.ref.key, layout, None, LOAD_S, False))

    def _take(self, output: Output) -> None:
        for load in output.loads:
            self._loading.append((self.clock() + LOAD_S, load))
        if output.stats is not None:
            self.hear(output.stats)
        for part in output.sequences:
            self._tell(part)

    def _tell(self, part: SequenceOutput) -> None:
        job = self.jobs[part.request_id]
        tenant = job.ask.tenant.id
        num_output = len(part.tokens) + (part.finish is FinishReason.STOP)
        if num_output and job.first_s is None:
            job.first_s = self.clock()
            self.waiting[tenant] -= 1
            self.served[tenant] += job.ask.prompt
        job.num_output += num_output
        self.served[tenant] += 2 * num_output
        if part.finish is not None:
            assert part.error is None, part.error
            job.end_s = self.clock()
            job.queue_s = sum(wait.end_s - wait.start_s for wait in part.waits)
            self.busy[tenant] -= 1
            if job.first_s is None:
                self.waiting[tenant] -= 1


def poisson(
    rng: random.Random, rate: float, make: Callable[[], Ask], start_s: float = 0.0
) -> Iterator[tuple[float, Ask]]:
    now = start_s
    while True:
        now += rng.expovariate(rate)
        yield now, make()


def merged(*streams: Iterator[tuple[float, Ask]]) -> Iterator[tuple[float, Ask]]:
    return heapq.merge(*streams, key=lambda item: item[0])


def percentile(ascending: Sequence[float], q: float) -> float:
    return ascending[min(len(ascending) - 1, int(q * len(ascending)))]


def jain(shares: Sequence[float]) -> float:
    """1 where all are equal, 1 / n where one has it all."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
