"""One replica's work, step by step. Standard library only; the runner is an argument.

The same loop serves in the core process and, in-process, in tests and benchmarks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from engine.accounts import Accounts
from engine.adapters.cache import AdapterCache
from engine.adapters.host import HostPool
from engine.arena import Arena
from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.eviction import GreedyDualSize
from engine.messages import (
    Abort,
    Drop,
    Input,
    LoadDone,
    Output,
    Prefetch,
    Retry,
    SequenceOutput,
    ServiceElsewhere,
    SetLimits,
    SetPins,
    Submit,
)
from engine.plan import Launch, Runner, Upload
from engine.prefix import PrefixTree
from engine.prices import prices_of
from engine.scheduler import Scheduler
from engine.stepcost import step_cost
from engine.types import FinishReason, Request

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
STATS_INTERVAL_S = 1.0


class Engine:
    """depth: plans on the device while the next one is scheduled. clock: seconds, monotonic.

    Not thread-safe: one thread delivers messages and calls `step`.
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float], depth: int
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._depth = depth
        self._in_flight: deque[Launch] = deque()
        self._uploads: dict[str, Upload] = {}
        self._stats_due_s = clock()

    def step(self) -> Output | None:
        """One turn of the loop. None where there was nothing to do and nothing is to be said."""
        self._poll_uploads()
        committed: list[SequenceOutput] = []

        plan = self.scheduler.schedule(self._clock())
        if plan:
            self._in_flight.append(self._runner.launch(plan))
        is_working = bool(self._in_flight)
        if self._in_flight and (len(self._in_flight) > self._depth or not plan):
            committed = self.scheduler.commit(self._in_flight.popleft().wait())

        self._start_uploads()
        return self._output(committed, is_working)

    def deliver(self, message: Input) -> None:
        """One message from outside; its effects show in the next `step`."""
        now = self._clock()
        match message:
            case Submit(request):
                self.scheduler.submit(request, now)
            case Abort(request_id, finish):
                self.scheduler.abort(request_id, now, finish)
            case Prefetch():
                self.scheduler.cache.prefetch(message, now)
            case SetPins(pins):
                self.scheduler.cache.set_pins(pins)
            case SetLimits():
                self.scheduler.set_limits(message)
            case Drop():
                self.scheduler.retire(message, now)
            case Retry(ref):
                self.scheduler.cache.obstacles.forget(ref)
            case LoadDone():
                self.scheduler.loaded(message, now)
            case ServiceElsewhere(peers):
                self.scheduler.exchange.receive(peers)

    def submit(self, request: Request) -> None:
        self.deliver(Submit(request))

    def abort(self, request_id: str, finish: FinishReason = FinishReason.ABORT) -> None:
        self.deliver(Abort(request_id, finish))

    @property
    def idle(self) -> bool:
        """Only a message can bring work: nothing is on the device or on its way there, and no
        adapter waits for room. Right after a `step` that had nothing to do."""
        return not self._in_flight and not self.scheduler.cache.is_promoting

    def close(self) -> None:
        """Waits for what is on the device, and lets go of it."""
        while self._in_flight:
            self._in_flight.popleft().wait()
        self._runner.close()

    def _poll_uploads(self) -> None:
        for key in [key for key, upload in self._uploads.items() if upload.done()]:
            del self._uploads[key]
            self.scheduler.cache.on_uploaded(key, self._clock())

    def _start_uploads(self) -> None:
        for order in self.scheduler.cache.take_uploads():
            self._uploads[order.key] = self._runner.upload(
                order.host_offset, order.num_bytes, order.start_page
            )

    def _output(self, committed: list[SequenceOutput], is_working: bool) -> Output | None:
        cache = self.scheduler.cache
        now = self._clock()
        stats = measures = None
        if now >= self._stats_due_s:
            stats = self.scheduler.stats(now)
            measures = self.scheduler.take_measures()
            self._stats_due_s = now + STATS_INTERVAL_S
        sequences = tuple(self.scheduler.take_outputs() + committed)
        loads = tuple(cache.take_loads())
        discards = tuple(cache.take_discards())
        residency = cache.take_residency(now)
        if is_working or sequences or loads or discards or residency or stats:
            return Output(sequences, loads, discards, residency, stats, measures)
        return None


def build_engine(
    config: EngineConfig, runner: Runner, base_revision: str, clock: Callable[[], float]
) -> Engine:
    """Composes an engine.

    Raises InvalidRequest where the arena can't hold one longest sequence, or a pass can't take all
    rows and part of a prompt beside them.
    """
    schedule, memory = config.schedule, config.memory
    if schedule.max_step_tokens <= schedule.max_seqs:
        raise InvalidRequest(
            f"max_step_tokens is {schedule.max_step_tokens}. Make it larger than max_seqs,"
            f" {schedule.max_seqs}, so that prompts get on while all rows decode."
        )
    reserve = -(-config.model.max_model_len // memory.page_tokens)
    if runner.num_pages <= reserve:
        raise InvalidRequest(
            f"The arena has {runner.num_pages} pages, one of them for padding, and a sequence of"
            f" max_model_len {config.model.max_model_len} takes {reserve}. Enlarge arena_bytes."
        )
    arena = Arena(runner.num_pages, reserve, runner.page_bytes, memory.max_move_bytes)
    cost = step_cost(runner.passes)
    accounts = Accounts(config.accounts, prices_of(config.accounts, runner.num_pages))
    idle: GreedyDualSize[Hashable] = GreedyDualSize()
    prefix = PrefixTree(memory.page_tokens, idle, lambda: cost.token_s * memory.page_tokens)
    cache = AdapterCache(
        config.adapters,
        arena,
        idle,
        prefix,
        HostPool(memory.host_bytes),
        ITEM_BYTES[config.model.dtype],
        accounts,
    )
    scheduler = Scheduler(config, arena, accounts, cache, prefix, cost, base_revision)
    return Engine(scheduler, runner, clock, schedule.depth)
