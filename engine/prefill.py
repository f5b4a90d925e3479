"""Which prompts are read in a step: half-read ones and new requests alike, in account order.

Standard library only.
"""

from __future__ import annotations

from engine.accounts import Accounts
from engine.holdings import Holdings
from engine.preemption import Preemption
from engine.queue import WaitingQueue
from engine.reclaim import Reclaim
from engine.requests import Requests
from engine.running import RunningSet
from engine.sequence import Sequence
from engine.step import Step
from engine.turns import MAX_LOOKS, Turns, locality_score
from engine.upcoming import Upcoming


class Prefill:
    """Deals out a step's prefill tokens. A newcomer gets lease, row and pages together, or nothing.

    Where a row or pages are short, newcomers of tenants below their share may take them from
    tenants above theirs. What is free is kept for the first that found too little, so that a large
    request is not starved by small ones.
    """

    def __init__(
        self,
        accounts: Accounts,
        reclaim: Reclaim,
        requests: Requests,
        holdings: Holdings,
        preemption: Preemption,
        queue: WaitingQueue,
        running: RunningSet,
    ) -> None:
        self._accounts = accounts
        self._reclaim = reclaim
        self._requests = requests
        self._holdings = holdings
        self._preemption = preemption
        self._queue = queue
        self._running = running

    def num_unread(self, step: Step) -> int:
        """Tokens that are left of prompts that are half read, and those of prompts that wait for
        nothing but room."""
        half_read = sum(s.num_remaining for mine in step.half_read.values() for s in mine)
        return half_read + self._queue.ready_tokens

    def deal(self, step: Step, num_tokens: int) -> int:
        """Grants up to `num_tokens` of this step to half-read prompts and to newcomers. Returns how
        many it has granted."""
        num_left = num_tokens
        step.is_full = step.is_full or not self._running.num_free_rows
        step.is_closed = step.is_full and self._preemption.for_row(step.plan_id) is None
        upcoming = Upcoming(step, self._queue)
        turns = self._turns(step, upcoming)
        in_batch: set[str | None] = set()

        def score(tenant: str) -> float:
            if not in_batch:
                in_batch.update(s.adapter_key for s in self._running)
            return self._score(upcoming.of(tenant), step, in_batch)

        while num_left > 0:
            was_closed = step.is_closed
            tenant = turns.next(None if step.is_full else score)
            if tenant is None:
                break
            sequence = self._next(tenant, step)
            if sequence is not None:
                granted = min(num_left, sequence.num_remaining)
                step.grants[sequence] = granted
                num_left -= granted
                self._accounts.turn(tenant, step.now)
                turns.again(tenant)
            elif step.is_closed and not was_closed:
                turns = self._turns(step, upcoming)
        return num_tokens - num_left

    def _turns(self, step: Step, upcoming: Upcoming) -> Turns:
        """Those who could be granted anything, the least account first."""
        half_read = {tenant for tenant, mine in step.half_read.items() if mine}
        ready = self._queue.ready_tenants().keys()
        if step.is_closed:
            return self._accounts.turns(half_read, aged=upcoming)
        if not step.is_full:
            return self._accounts.turns(half_read, ready, aged=upcoming)

        def may_take_a_row(tenant: str) -> bool:
            is_ready = tenant in ready and self._preemption.is_below_row_share(tenant)
            return tenant in half_read or is_ready

        return self._accounts.turns(
            half_read,
            ready,
            aged=upcoming,
            is_candidate=may_take_a_row,
            max_looks=MAX_LOOKS,
        )

    def _score(self, sequence: Sequence | None, step: Step, in_batch: set[str | None]) -> float:
        """For choosing between near-equals: see `turns.locality_score`. A turn is waited for
        since the last one: how long a request has stood behind its own tenant's others would
        favour whoever asks for most."""
        if sequence is None:
            return 0.0
        return locality_score(
            self._accounts.config.w_local,
            step.now - max(sequence.arrival_s, self._accounts.account(sequence.tenant).turn_s),
            len(sequence.tokens),
            sequence.adapter_key in in_batch,
        )

    def _next(self, tenant: str, step: Step) -> Sequence | None:
        """The tenant's next sequence, with a row. None: nothing of this tenant can go on now."""
        mine = step.half_read.get(tenant)
        while mine:
            sequence = mine.pop(0)
            if sequence.row >= 0:
                return sequence
        if step.is_closed or self._is_barred(tenant, step):
            return None
        while (newcomer := self._queue.head(tenant)) is not None:
            num_tokens = len(newcomer.tokens) if newcomer.ever_admitted else newcomer.max_length
            if not self._requests.end_if_outgrown(newcomer, num_tokens, step.now):
                return newcomer if self._admit(newcomer, step) else None
        return None

    def _is_barred(self, tenant: str, step: Step) -> bool:
        return step.bar is not None and self._accounts.standing(tenant) >= step.bar

    def _admit(self, sequence: Sequence, step: Step) -> bool:
        num_pages = self._holdings.num_pages(sequence)
        is_below = self._preemption.is_below_share(sequence.tenant, num_pages)
        if step.is_full and not is_below:
            return False
        nodes = self._holdings.cached(sequence)
        self._holdings.hold(nodes)
        if not self._reclaim.keep_page_quota(sequence.tenant, num_pages, step.last_plan):
            self._holdings.let_go(nodes)
            return False
        num_pages -= len(nodes)
        is_new = not sequence.ever_admitted  # and so counted once, however often it is preempted
        has_room = self._make_room(sequence, num_pages, is_below, step)
        if has_room and self._requests.admit(sequence, nodes, step):
            if is_new:
                step.newcomers.append(sequence)
            return True
        self._holdings.let_go(nodes)
        step.is_full = True
        if is_below or not self._accounts.is_fair:
            step.is_closed = True
        else:
            step.num_reserved = max(step.num_reserved, num_pages)
        return False

    def _make_room(self, sequence: Sequence, num_pages: int, is_below: bool, step: Step) -> bool:
        """A row and so many free pages, beside those that are reserved."""
        if not self._running.num_free_rows and not (
            is_below and step.preempt(self._preemption.for_row(step.plan_id, sequence.tenant))
        ):
            return False
        needed = num_pages + step.num_reserved
        while self._reclaim.num_available < needed:
            lacking = needed - self._reclaim.num_available
            if not is_below or lacking > self._preemption.num_pages_above():
                return False
            if not step.preempt(self._preemption.for_pages(step.plan_id, sequence.tenant)):
                return False
        return self._reclaim.for_pages(num_pages, step.last_plan)
