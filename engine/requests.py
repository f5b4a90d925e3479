"""Every request in progress, from its submit to its one end. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.accounts import Accounts
from engine.adapters.cache import AdapterCache
from engine.adapters.retired import retired_now
from engine.config import ModelConfig
from engine.counters import Counters
from engine.errors import Conflict, ErrorInfo
from engine.holdings import Holdings
from engine.messages import Drop, LoadDone, SequenceOutput
from engine.page_shares import PageShares
from engine.prefix import PrefixNode
from engine.queue import WaitingQueue
from engine.refusal import is_usable, refusal
from engine.running import RunningSet
from engine.sequence import Sequence
from engine.step import Step
from engine.timeline import Wait
from engine.types import FinishReason, Request, Tenant


class Requests:
    """A request waits or runs; whatever it holds or has been charged is given back when it ends."""

    def __init__(
        self,
        queue: WaitingQueue,
        running: RunningSet,
        holdings: Holdings,
        accounts: Accounts,
        shares: PageShares,
        cache: AdapterCache,
        counters: Counters,
    ) -> None:
        self._queue = queue
        self._running = running
        self._holdings = holdings
        self._accounts = accounts
        self._shares = shares
        self._cache = cache
        self._counters = counters
        self._sequences: dict[str, Sequence] = {}
        self._num_submitted = 0
        self._outputs: list[SequenceOutput] = []

    def submit(self, request: Request, now: float, model: ModelConfig, base_revision: str) -> None:
        """Takes a request in, or ends it at once with an error: one that can never be served, or
        whose adapter has just failed to load."""
        error = self._refusal(request, now, model, base_revision)
        if error is not None:
            self._outputs.append(SequenceOutput(request.id, (), FinishReason.ERROR, error))
            return
        sequence = Sequence(request, now, self._num_submitted, list(request.prompt))
        sequence.usage = self._counters.usage.of(request.tenant.id)
        self._num_submitted += 1
        self._sequences[request.id] = sequence
        self._accounts.arrive(request.id, request.tenant)
        self._queue.push(sequence)
        if request.adapter is not None:
            self._counters.arrivals[self._cache.tier(request.adapter)] += 1
            self._cache.want(request.adapter, request.tenant)

    def abort(self, request_id: str, finish: FinishReason, now: float) -> None:
        """Ends a request, wherever it is. Nothing happens for one that has ended already."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._outputs.append(self.finish(sequence, finish, now))

    def loaded(self, done: LoadDone, now: float) -> None:
        """A load has ended; if it failed, so do the requests that wait for it."""
        if done.error is not None:  # the cache is about to forget the version
            for sequence in self._queue.waiting_for(done.key):
                sequence.journey = self._cache.journey(done.key, sequence.waiting_s)
        error = self._cache.on_loaded(done, now)
        if error is not None:
            self._outputs += self.end_waiting(done.key, error, now)

    def retire(self, drop: Drop, now: float) -> None:
        """A version is retired. Its requests go on, or end here and now where that was ordered."""
        self._cache.retire(drop, now)
        if drop.now:
            key = drop.ref.key
            running = [s for s in self._running if s.adapter_key == key]
            for sequence in running + self._queue.waiting_for(key):
                error = retired_now(drop.ref)
                self._outputs.append(self.finish(sequence, FinishReason.ERROR, now, error))

    def end_waiting(self, key: str, error: ErrorInfo, now: float) -> list[SequenceOutput]:
        """Ends, with this error, those that wait for the adapter."""
        waiting = self._queue.waiting_for(key)
        return [self.finish(sequence, FinishReason.ERROR, now, error) for sequence in waiting]

    def take_outputs(self) -> list[SequenceOutput]:
        """Ends that no step brought about."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def admit(self, sequence: Sequence, nodes: list[PrefixNode], step: Step) -> bool:
        """Gives a waiting sequence all that it needs to run, and charges it if it is new. False,
        and nothing taken, where something can't be had. The nodes are held by the caller."""
        if not self._holdings.take(sequence, nodes, step.plan_id):
            return False
        self._leave_queue(sequence, step.now)
        if sequence.ever_admitted:
            return True
        sequence.ever_admitted = True
        sequence.num_cached = sequence.num_computed
        request = sequence.request
        sequence.usage.queue_s += step.now - sequence.arrival_s
        num_prompt = len(request.prompt) - sequence.num_cached
        self._accounts.admit(request.id, num_prompt, request.max_tokens)
        self._counters.prompt(sequence.usage, len(request.prompt), sequence.num_cached)
        return True

    def end_if_outgrown(self, sequence: Sequence, num_tokens: int, now: float) -> bool:
        """True where it is to hold more tokens than it ever can, since its tenant's hard share was
        lowered: it ends with an error. What it has on the device is awaited first, and may be its
        end anyway."""
        error = self._shares.refusal(sequence.tenant, num_tokens)
        if error is None:
            return False
        if not sequence.num_pending:
            self._outputs.append(self.finish(sequence, FinishReason.ERROR, now, error.info()))
        return True

    def set_limits(self, tenants: Iterable[Tenant]) -> None:
        """See `messages.SetLimits`."""
        for tenant in tenants:
            if is_usable(tenant.weight):
                self._accounts.reweigh(tenant)
            self._shares.learn(tenant)
            self._cache.learn(tenant)

    def settle(self, sequence: Sequence) -> None:
        """Tells account and usage of the output tokens that they don't know of yet: a page at a
        time at most, since telling them of each would cost more than all else about a token."""
        if len(sequence.tokens) - sequence.num_prompt > sequence.num_settled:
            self.produced(sequence, 0)

    def produced(self, sequence: Sequence, num_dropped: int) -> None:
        """It has output tokens that weren't told of yet, and some more were drawn and dropped."""
        num_output = len(sequence.tokens) - sequence.num_prompt
        num_new = num_output - sequence.num_settled
        sequence.num_settled = num_output
        amount = sequence.owed if self._accounts.prices.is_measured else None
        sequence.owed = 0.0
        self._accounts.produced(sequence.request.id, num_new + num_dropped, amount)
        self._counters.output(sequence.usage, num_new)

    def billed(self, sequence: Sequence) -> None:
        """A step was added to its tenant's usage after it had left its row: that is told, too."""
        self._counters.usage.of(sequence.tenant)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """It waits again, at the head of its queue, and will be computed anew."""
        self._holdings.give_back(sequence)
        sequence.waiting_s = now
        self._counters.num_preemptions += 1
        self._queue.push_front(sequence)
        if sequence.request.adapter is not None:
            self._cache.want(sequence.request.adapter, sequence.request.tenant)

    def finish(
        self,
        sequence: Sequence,
        finish: FinishReason,
        now: float,
        error: ErrorInfo | None = None,
        tokens: tuple[int, ...] = (),
    ) -> SequenceOutput:
        """Ends a request in whatever state it is, and gives back all that it holds. Returns its
        last output, which ends with `tokens`."""
        self.settle(sequence)
        self._counters.usage.of(sequence.tenant)
        if sequence.row >= 0:
            self._holdings.give_back(sequence)
        else:
            self._leave_queue(sequence, now)
        sequence.finished = True
        del self._sequences[sequence.id]
        is_completed = finish in (FinishReason.STOP, FinishReason.LENGTH)
        self._accounts.finish(sequence.id, completed=is_completed)
        return SequenceOutput(
            sequence.id, tokens, finish, error, sequence.report_cached(), sequence.waits
        )

    def check(self) -> None:
        running = list(self._running)
        waiting = [s for s in self._sequences.values() if s.row < 0]
        assert len(waiting) == len(self._queue) and len(running) == len(self._sequences) - len(
            waiting
        )
        assert all(self._sequences[s.id] is s for s in running)
        self._cache.check_demand(
            waiting=Counter(s.adapter_key for s in waiting if s.adapter_key is not None),
            leases=Counter(s.lease.key for s in running if s.lease is not None),
        )

    def _refusal(
        self, request: Request, now: float, model: ModelConfig, base_revision: str
    ) -> ErrorInfo | None:
        if request.id in self._sequences:
            return Conflict(f"A request with id {request.id!r} is in progress.").info()
        self._shares.learn(request.tenant)
        num_tokens = len(request.prompt) + request.max_tokens
        error = refusal(request, model, base_revision) or self._shares.refusal(
            request.tenant.id, num_tokens
        )
        if error is not None:
            return error.info()
        if request.adapter is None:
            return None
        return self._cache.obstacles.of(request.adapter, now)

    def _leave_queue(self, sequence: Sequence, now: float) -> None:
        self._queue.remove(sequence)
        journey = sequence.journey
        if sequence.adapter_key is not None:
            journey = journey or self._cache.journey(sequence.adapter_key, sequence.waiting_s)
            self._cache.unwant(sequence.adapter_key)
        sequence.waits += (Wait(sequence.waiting_s, now, journey),)
