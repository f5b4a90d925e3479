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


class Prefill:
    """Deals out a step's prefill tokens. A newcomer gets lease, row and pages together, or nothing.

    Where a row or pages are short, newcomers of tenants below their share may take them from
    tenants above theirs; for all others the first that doesn't fit holds up those behind it, so
    that a large request is not starved by small ones.
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

    def deal(
        self,
        step: Step,
        half_read: dict[str, list[Sequence]],
        num_tokens: int,
        bar: float | None,
    ) -> None:
        """half_read: by tenant, the oldest first; it is used up. num_tokens: of this step.
        bar: newcomers come from tenants whose account is below it alone."""
        step.is_full = step.is_full or not self._running.num_free_rows
        tenants = set(half_read)
        if not step.is_full or self._preemption.for_row(step.plan_id) is not None:
            tenants |= self._queue.ready_tenants().keys()
        if not tenants:
            return
        turns = self._accounts.turns(tenants)
        in_batch = {s.adapter_key for s in self._running}
        while num_tokens > 0:
            tenant = turns.next(lambda t: self._score(t, step, half_read, in_batch))
            if tenant is None:
                break
            is_barred = bar is not None and self._accounts.account(tenant).value >= bar
            sequence = self._next(tenant, step, half_read, is_barred)
            if sequence is None:
                continue
            granted = min(num_tokens, sequence.num_remaining)
            step.grants[sequence] = granted
            num_tokens -= granted
            turns.again(tenant)

    def _score(
        self,
        tenant: str,
        step: Step,
        half_read: dict[str, list[Sequence]],
        in_batch: set[str | None],
    ) -> float:
        mine = half_read.get(tenant)
        sequence = mine[0] if mine else self._queue.head(tenant)
        if sequence is None:
            return 0.0
        return self._accounts.locality_score(
            step.now - sequence.arrival_s,
            len(sequence.tokens),
            sequence.adapter_key in in_batch,
        )

    def _next(
        self, tenant: str, step: Step, half_read: dict[str, list[Sequence]], is_barred: bool
    ) -> Sequence | None:
        """The tenant's next sequence, with a row. None: nothing of this tenant can go on now."""
        mine = half_read.get(tenant)
        while mine:
            sequence = mine.pop(0)
            if sequence.row >= 0:
                return sequence
        newcomer = self._queue.head(tenant)
        if newcomer is None or step.is_closed or is_barred:
            return None
        return newcomer if self._admit(newcomer, step) else None

    def _admit(self, sequence: Sequence, step: Step) -> bool:
        num_pages = self._holdings.num_pages(sequence)
        is_below = self._preemption.is_below_share(sequence.tenant, num_pages)
        if step.is_full and not is_below:
            return False
        nodes = self._holdings.cached(sequence)
        self._holdings.hold(nodes)
        has_room = self._make_room(num_pages - len(nodes), is_below, step)
        if not has_room or not self._requests.admit(sequence, nodes, step.plan_id):
            self._holdings.let_go(nodes)
            step.is_full = True
            step.is_closed = is_below
            return False
        return True

    def _make_room(self, num_pages: int, is_below: bool, step: Step) -> bool:
        """A row and so many free pages."""
        if not self._running.num_free_rows and not (
            is_below and step.preempt(self._preemption.for_row(step.plan_id))
        ):
            return False
        while not self._reclaim.for_pages(num_pages, step.last_plan):
            lacking = num_pages - self._reclaim.num_available
            if not is_below or lacking > self._preemption.num_pages_above():
                return False
            if not step.preempt(self._preemption.for_pages(step.plan_id)):
                return False
        return True
