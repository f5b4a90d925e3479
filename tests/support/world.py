"""An engine with a device that checks everything, a loader and a clock that are ours to steer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engine.adapters.layout import AdapterLayout
from engine.adapters.residency import ResidencyTable
from engine.config import (
    AccountConfig,
    AdapterConfig,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ScheduleConfig,
    StoreConfig,
)
from engine.core_stats import CoreStats, Measures
from engine.engine import Engine, build_engine
from engine.errors import ErrorInfo
from engine.fake_runner import FIRST_TOKEN
from engine.messages import Discard, Load, LoadDone, Output
from engine.plan import StepPlan
from engine.timeline import Wait
from engine.types import AdapterRef, FinishReason, Request, Tenant
from tests.support.device_model import DeviceModel
from tests.support.virtual import VirtualClock

PAGE_TOKENS = 4
PAGE_BYTES = 1024
BASE = "base-revision"


@dataclass
class Answer:
    """All that a request has been told. `times`: when each output came."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: ErrorInfo | None = None
    num_cached: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    waits: tuple[Wait, ...] = ()


def adapter(name: str, num_pages: int = 2, tenant: str = "t") -> AdapterRef:
    """A version that takes so many pages of the arena."""
    num_elements = num_pages * PAGE_BYTES // 4
    return AdapterRef(
        tenant, name, f"digest-{name}", BASE, (8,), num_elements, num_elements * 4, f"uri/{name}"
    )


def schedule(depth: int = 0, **fields: float) -> ScheduleConfig:
    """Of few rows and small steps, so that both run short."""
    return replace(ScheduleConfig(max_seqs=4, max_step_tokens=16, depth=depth), **fields)


def config(
    *,
    num_pages: int = 64,
    host_bytes: int = 1 << 20,
    max_model_len: int = 64,
    max_move_pages: int = 64,
    schedule: ScheduleConfig | None = None,
    accounts: AccountConfig | None = None,
    adapters: AdapterConfig | None = None,
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path="", device="fake", max_model_len=max_model_len),
        memory=MemoryConfig(
            arena_bytes=num_pages * PAGE_BYTES,
            host_bytes=host_bytes,
            page_tokens=PAGE_TOKENS,
            max_move_bytes=max_move_pages * PAGE_BYTES,
        ),
        store=StoreConfig(url="file:///nowhere", disk_path="/nowhere"),
        schedule=schedule or ScheduleConfig(max_seqs=8, max_step_tokens=64),
        accounts=accounts or AccountConfig(default_output=8, locality_slack_tokens=16.0),
        adapters=adapters or AdapterConfig(),
    )


class World:
    """load_s: how long the loader takes. fails: the error of a version's load, if it fails."""

    def __init__(
        self,
        settings: EngineConfig,
        *,
        load_s: float = 0.05,
        upload_s: float = 0.0,
        step_s: float = 0.01,
        fails: Callable[[AdapterRef], ErrorInfo | None] = lambda ref: None,
    ) -> None:
        self.clock = VirtualClock()
        self.device = DeviceModel(
            num_pages=settings.memory.arena_bytes // PAGE_BYTES,
            page_bytes=PAGE_BYTES,
            page_tokens=PAGE_TOKENS,
            clock=self.clock,
            step_s=step_s,
            upload_s=upload_s,
        )
        self.engine: Engine = build_engine(settings, self.device, BASE, self.clock)
        self.load_s = load_s
        self.fails = fails
        self.permanent = False
        self.answers: dict[str, Answer] = {}
        self.loads: list[Load] = []
        self.loading: list[tuple[float, Load]] = []
        self.residency = ResidencyTable()
        self.discards: list[Discard] = []
        self.stats: list[CoreStats] = []
        self.measures: list[Measures] = []
        self.checks = True

    def submit(
        self,
        request_id: str,
        *,
        tenant: str | Tenant = "t",
        prompt: int | tuple[int, ...] = 5,
        max_tokens: int = 4,
        ref: AdapterRef | None = None,
        stop: tuple[int, ...] = (),
        salt: str = "",
    ) -> None:
        """`prompt`: tokens, or how many of them (then they are this request's own)."""
        if isinstance(prompt, int):
            first = 1_000_000 + 1000 * len(self.answers)
            prompt = tuple(range(first, first + prompt))
        owner = Tenant(tenant) if isinstance(tenant, str) else tenant
        self.answers.setdefault(request_id, Answer())
        self.engine.submit(
            Request(request_id, owner, ref, prompt, max_tokens, stop_token_ids=stop, salt=salt)
        )

    def step(self) -> Output | None:
        """One turn, every invariant checked after it. Time passes by itself where nothing runs."""
        for due in [item for item in self.loading if item[0] <= self.clock()]:
            self.loading.remove(due)
            self.finish_load(due[1])
        output = self.engine.step()
        if self.checks:
            self.engine.scheduler.check()
        if output is not None:
            self._take(output)
        else:
            self.clock.sleep(0.001)
        return output

    def finish_load(self, load: Load) -> None:
        self.device.host[load.host_offset] = load.ref.key
        error = self.fails(load.ref)
        layout = None if error else AdapterLayout((), load.ref.num_elements)
        self.engine.deliver(
            LoadDone(load.load_id, load.ref.key, layout, error, self.load_s, False, self.permanent)
        )

    def run(self, max_steps: int = 10_000) -> int:
        """Until nobody waits or runs. Returns the number of turns."""
        for turn in range(max_steps):
            self.step()
            scheduler = self.engine.scheduler
            is_working = scheduler.num_running or scheduler.num_waiting or self.loading
            if not is_working and self.engine.idle:
                return turn + 1
        raise AssertionError(f"not done after {max_steps} turns")

    def run_until(self, done: Callable[[], bool], max_steps: int = 10_000) -> int:
        for turn in range(max_steps):
            if done():
                return turn
            self.step()
        raise AssertionError(f"did not happen within {max_steps} turns")

    def _take(self, output: Output) -> None:
        for load in output.loads:
            self.loads.append(load)
            self.loading.append((self.clock() + self.load_s, load))
        if output.residency is not None:
            before = self.residency.lists()
            self.residency.apply(output.residency)
            assert self.residency.lists() != before, "sent though nothing changed"
        self.discards += output.discards
        if output.stats is not None:
            self.stats.append(output.stats)
        if output.measures is not None:
            self.measures.append(output.measures)
        for part in output.sequences:
            answer = self.answers[part.request_id]
            assert answer.finish is None, f"{part.request_id} was told something after its end"
            answer.tokens += part.tokens
            answer.finish = part.finish
            answer.error = part.error
            answer.num_cached.append(part.num_cached)
            answer.times.append(self.clock())
            answer.waits = part.waits


def tokens_of(plan: StepPlan) -> dict[str, int]:
    """Tokens of each request in a plan."""
    return {span.sequence.id: span.num_tokens for span in plan.spans}


def last(world: World) -> dict[str, int]:
    """Tokens of each request in the last plan."""
    return tokens_of(world.device.plans[-1])


def expected(prompt: int, num_tokens: int) -> list[int]:
    """The first tokens that the device draws for a prompt of that length."""
    return [FIRST_TOKEN + prompt + i for i in range(num_tokens)]


def assert_nothing_is_held(world: World) -> None:
    scheduler = world.engine.scheduler
    assert scheduler.num_running == scheduler.num_waiting == 0
    assert scheduler.arena.num_kv_pages == scheduler.prefix.num_pages == scheduler.prefix.num_idle
    scheduler.cache.check_demand(waiting={}, leases={})
    scheduler.check()
