"""Decides each step: who runs, with how many tokens, and what becomes of the results.

Events in (`submit`, `abort`, `loaded`, `commit`), plans and instructions out. Nothing here knows a
tensor, a device or a clock. Standard library only.

There is no prefill phase and no decode phase: a sequence has tokens that are not computed yet, one
while it decodes and more while its prompt is read, and a plan says how many of them come next.
"""

from __future__ import annotations

from operator import attrgetter

from engine.accounts import Accounts
from engine.adapters.cache import AdapterCache
from engine.arena import Arena
from engine.config import EngineConfig
from engine.core_stats import CoreStats, Measures
from engine.counters import Counters
from engine.exchange import ServiceExchange
from engine.holdings import Holdings
from engine.measuring import Measuring
from engine.messages import Drop, LoadDone, SequenceOutput, SetLimits
from engine.pacing import Pacing
from engine.page_shares import PageShares
from engine.pages import NO_PLAN
from engine.plan import StepPlan, StepResult
from engine.preemption import Preemption
from engine.prefill import Prefill
from engine.prefix import PrefixTree
from engine.quarantine import Quarantine
from engine.queue import WaitingQueue
from engine.requests import Requests
from engine.running import RunningSet
from engine.sequence import Sequence
from engine.settling import Settling
from engine.step import Step
from engine.stepcost import StepCost
from engine.tenant_load import tenant_loads
from engine.types import FinishReason, Request

_NUM_COMPUTED = attrgetter("num_computed")


class Scheduler:
    """The parts come in as arguments; `build_engine` composes them.

    The loop is: `schedule`, launch the plan, and `commit` the results in the order of the plans,
    at once or while a later plan is already on the device.
    """

    def __init__(
        self,
        config: EngineConfig,
        arena: Arena,
        accounts: Accounts,
        cache: AdapterCache,
        prefix: PrefixTree,
        cost: StepCost,
        base_revision: str,
    ) -> None:
        self._config = config
        self._base_revision = base_revision
        self._cost = cost
        self._last_plan = NO_PLAN
        self._now = 0.0
        self.arena = arena
        self.accounts = accounts
        self.cache = cache
        self.prefix = prefix
        self.exchange = ServiceExchange(accounts, config.accounts.local_floor)
        self.counters = Counters(cache.usage)
        self.measuring = Measuring(arena, prefix, cache) if config.measures else None
        self._queue = WaitingQueue()
        self._running = RunningSet(config.schedule.max_seqs)
        self._holdings = Holdings(
            arena, prefix, cache, self._running, base_revision, config.schedule.prefix_cache
        )
        shares = PageShares(self._running, prefix, accounts, arena.num_pages - 1)
        cache.reclaim.begin(shares)
        self._requests = Requests(
            self._queue, self._running, self._holdings, accounts, shares, cache, self.counters
        )
        self._preemption = Preemption(self._running, accounts, shares)
        self._pacing = Pacing(config.schedule, cost, prefix.page_tokens)
        self._prefill = Prefill(
            accounts,
            cache.reclaim,
            self._requests,
            self._holdings,
            self._preemption,
            self._queue,
            self._running,
        )
        self._settling = Settling(
            accounts,
            cache,
            cost,
            self._requests,
            self._holdings,
            Quarantine(config.adapters.max_faults, config.adapters.permanent_failure_ttl_s),
        )

    # Events

    def submit(self, request: Request, now: float) -> None:
        """Takes a request in, or ends it at once with an error."""
        self._requests.submit(request, now, self._config.model, self._base_revision)

    def abort(self, request_id: str, now: float, finish: FinishReason = FinishReason.ABORT) -> None:
        """Ends a request, wherever it is. Nothing happens for one that has ended already."""
        self._requests.abort(request_id, finish, now)

    def loaded(self, done: LoadDone, now: float) -> None:
        """A load has ended; if it failed, so do the requests that wait for it."""
        self._requests.loaded(done, now)

    def retire(self, drop: Drop, now: float) -> None:
        """A version is retired: see `messages.Drop`."""
        self._requests.retire(drop, now)

    def set_limits(self, change: SetLimits) -> None:
        """See `messages.SetLimits`."""
        self._requests.set_limits(change.tenants)

    def take_outputs(self) -> list[SequenceOutput]:
        """Ends that no step brought about."""
        return self._requests.take_outputs()

    # Steps

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, which the caller launches; None where there is nothing for the device."""
        self._now = now
        oldest = self._running.oldest
        self.cache.yielding.oldest = None if oldest is None else oldest.adapter_key
        self.cache.advance(now, self._last_plan)
        for key, is_open in self.cache.take_changes().items():
            self._queue.set_open(key, is_open)
        step = Step(
            self._last_plan + 1,
            now,
            self._config.schedule.max_preemptions,
            self._requests.preempt,
            self._bar(),
        )
        self._deal_decoding(step)
        self._make_way_for_adapters(step)
        num_read = sum(map(_NUM_COMPUTED, step.grants))
        num_unread = self._prefill.num_unread(step)
        num_tokens = self._pacing.num_tokens(len(step.grants), num_read, num_unread)
        self._pacing.took(self._prefill.deal(step, num_tokens))
        if self.measuring is not None and step.newcomers:
            self.measuring.admitted(step.newcomers, now)
        return self._plan(step)

    def commit(self, result: StepResult) -> list[SequenceOutput]:
        """What a plan brought, in the order of the plans. Rows that have ended since, or were
        preempted, drop their tokens."""
        plan = result.plan
        self.arena.settle(plan.id)
        size = plan.size
        self._cost.observe(size, result.seconds)
        self.counters.step(result.seconds, self._cost.base_s(size), result.replayed)
        if self.measuring is not None:
            self.measuring.step(plan, result.seconds)
        return self._settling.settle(result, self._now)

    # What there is

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def stats(self, now: float) -> CoreStats:
        """The counters as they stand."""
        counters = self.counters
        for sequence in self._running:
            self._requests.settle(sequence)
        self.cache.pass_time(now)
        return CoreStats(
            num_steps=counters.num_steps,
            num_running=len(self._running),
            num_waiting=len(self._queue),
            num_warming=self._queue.num_warming,
            queue_s=self._queue.mean_wait_s(now),
            free_pages=self.arena.num_free,
            num_pages=self.arena.num_pages,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=counters.output_tokens,
            num_preemptions=counters.num_preemptions,
            num_moves=counters.num_moves,
            num_evictions=self.cache.counts.num_evicted + self.cache.reclaim.num_prefixes,
            num_loads=self.cache.num_loads,
            step_p50_s=counters.step_quantile(0.5),
            step_p99_s=counters.step_quantile(0.99),
            service=self.exchange.take_changes(),
            usage=self.counters.usage.take_changes(self._running.tenants()),
            tenants=tenant_loads(self.accounts, self._running.tenants()),
            num_adapters=len({s.adapter_key for s in self._running} - {None}),
            held_pages=self._running.num_pages,
            rounding_bytes=self.arena.rounding_bytes,
            arrivals=tuple((tier.name.lower(), n) for tier, n in counters.arrivals.items()),
            num_replayed=counters.num_replayed,
            busy_s=counters.busy_s,
            base_s=counters.base_s,
        )

    def take_measures(self) -> Measures | None:
        """None where nothing is measured."""
        return None if self.measuring is None else self.measuring.take(self.accounts)

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        for part in (self.arena, self.accounts, self.cache, self.prefix):
            part.check()
        self._queue.check()
        self._running.check()
        self._requests.check()
        self._holdings.check()

    # Deciding

    def _deal_decoding(self, step: Step) -> None:
        """One token for every decoding sequence, the oldest first; notes those half read."""
        page_tokens = self.prefix.page_tokens
        grants = step.grants
        for sequence in tuple(self._running):
            if sequence.num_computed < sequence.grant_to:
                grants[sequence] = 1
                continue
            length = len(sequence.tokens) + sequence.num_pending
            num_computed = sequence.num_computed
            if sequence.row < 0 or length >= sequence.max_length:
                continue  # preempted just now, or its last token is on the device
            if length - num_computed > 1:
                step.half_read.setdefault(sequence.tenant, []).append(sequence)
                continue
            has_page = num_computed < len(sequence.pages) * page_tokens
            if has_page or self._grow(sequence, step):
                grants[sequence] = 1

    def _grow(self, sequence: Sequence, step: Step) -> bool:
        """A page more for one that decodes. False: it skips this step, was preempted or ended."""
        num_tokens = len(sequence.pages) * self.prefix.page_tokens + 1
        if self._requests.end_if_outgrown(sequence, num_tokens, step.now):
            return False
        while not self.cache.reclaim.keep_page_quota(sequence.tenant, 1, self._last_plan):
            newest = self._preemption.own_newest(sequence)
            if not step.preempt(newest) or newest is sequence:
                return False
        while not self.cache.reclaim.for_pages(1, self._last_plan):
            victim = self._preemption.for_growth(sequence, step.plan_id)
            if not step.preempt(victim) or victim is sequence:
                return False
        return self._holdings.grow(sequence)

    def _make_way_for_adapters(self, step: Step) -> None:
        """Preempts for adapters that wait for room: users of those that were to yield and have not
        drained in time, and sequences of tenants above their share where it is pages that lack."""
        for version in self.cache.yielding.overdue(step.now):
            while step.preempt(self._preemption.for_drain(version.key)):
                pass
        tenant = self.cache.starved
        if tenant is not None and self._preemption.is_below_share(tenant, 1):
            while step.preempt(self._preemption.for_pages(step.plan_id)):
                pass

    def _bar(self) -> float | None:
        """While an adapter has long waited for room that sequences hold, newcomers of tenants that
        are not behind its own wait until it has got it."""
        tenant = self.cache.starved
        if tenant is None:
            return None
        slack = self._config.accounts.locality_slack_tokens
        return self.accounts.standing(tenant) - slack

    def _plan(self, step: Step) -> StepPlan | None:
        """Positions are read after the moves: the tables say where things lie in the next plan."""
        moves = self.arena.plan_moves(step.plan_id)
        if moves:
            self._holdings.moved()
            self.counters.num_moves += len(moves)
        if not step.grants and not moves:
            return None
        entries = self.cache.take_entries(self.arena.moved_adapters() if moves else ())
        new_rows = tuple(s.row for s in step.grants if s.first_plan == step.plan_id)
        spans, size = self._holdings.spans(step.grants)
        self._last_plan = self._holdings.last_plan = step.plan_id
        return StepPlan(step.plan_id, spans, moves, entries, new_rows, size)
