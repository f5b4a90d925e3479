"""Whether a tenant's request is let in at all. Pure: the clock comes in as an argument.

Two bounds a tenant, both of this ingress alone: sequences in progress, and of those the ones that
wait for their first token. Over either: 429, with the time after which, at the rate at which the
tenant's own sequences have been completing (or starting), enough of them will have made room.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import InvalidRequest, TooManyRequests
from engine.types import Tenant
from router.rate import Rate


@dataclass(slots=True)
class _Counts:
    """One tenant's: sequences in progress, those without a first token, and both rates."""

    ends: Rate
    starts: Rate
    num_in_progress: int = 0
    num_queued: int = 0


class Ticket:
    """Leave for one client request of `num` sequences. Give it back with `release`, or leave a
    `with` block; both may be repeated, the counters move once."""

    def __init__(self, admission: Admission, tenant_id: str, num: int) -> None:
        self._admission = admission
        self.tenant_id = tenant_id
        self.num_left = num
        self.num_queued = num

    def started(self) -> None:
        """One of its sequences has its first token. More calls than sequences do nothing."""
        if self.num_queued:
            self.num_queued -= 1
            self._admission._started(self.tenant_id)

    def release(self) -> None:
        """The request is over, however it ended."""
        if self.num_left:
            num, queued = self.num_left, self.num_queued
            self.num_left = self.num_queued = 0
            self._admission._released(self, num, queued)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class Admission:
    """One ingress's counters of every tenant.

    clock              seconds, monotonic
    window_s           over which rates are measured
    min/max_retry_s    what a Retry-After is held between
    """

    clock: Callable[[], float]
    window_s: float = 30.0
    min_retry_s: float = 0.1
    max_retry_s: float = 60.0
    _tenants: dict[str, _Counts] = field(default_factory=dict)
    _tickets: set[Ticket] = field(default_factory=set)

    def admit(self, tenant: Tenant, num: int = 1) -> Ticket:
        """Lets in a client request of `num` sequences, all or none.

        Raises TooManyRequests (with `retry_after_s`) while the tenant is at a bound, and
        InvalidRequest where waiting can't help: `num` alone is above it.
        """
        limit = min(tenant.max_concurrent, tenant.max_queued)
        if num > limit:
            raise InvalidRequest(
                f"The request asks for {num} sequences at once; your limit is {limit}. "
                "Send fewer prompts, or a smaller n, in one request."
            )
        now = self.clock()
        counts = self._tenants.get(tenant.id)
        if counts is None:
            counts = _Counts(Rate(self.window_s), Rate(self.window_s))
            self._tenants[tenant.id] = counts
        self._refuse_above_bounds(counts, tenant, num, now)
        if not counts.num_in_progress:
            counts.ends.begin(now)
        if not counts.num_queued:
            counts.starts.begin(now)
        counts.num_in_progress += num
        counts.num_queued += num
        ticket = Ticket(self, tenant.id, num)
        self._tickets.add(ticket)
        return ticket

    def num_in_progress(self, tenant_id: str) -> int:
        counts = self._tenants.get(tenant_id)
        return counts.num_in_progress if counts else 0

    def num_queued(self, tenant_id: str) -> int:
        counts = self._tenants.get(tenant_id)
        return counts.num_queued if counts else 0

    def check(self) -> None:
        """Asserts what must hold between any two calls."""
        in_progress = dict.fromkeys(self._tenants, 0)
        queued = dict.fromkeys(self._tenants, 0)
        for ticket in self._tickets:
            assert 0 <= ticket.num_queued <= ticket.num_left > 0
            in_progress[ticket.tenant_id] += ticket.num_left
            queued[ticket.tenant_id] += ticket.num_queued
        for tenant_id, counts in self._tenants.items():
            assert counts.num_in_progress == in_progress[tenant_id]
            assert counts.num_queued == queued[tenant_id]

    # ------------------------------------------------------------------------------------------
    def _refuse_above_bounds(self, counts: _Counts, tenant: Tenant, num: int, now: float) -> None:
        """The longer wait counts where both bounds are reached."""
        over = counts.num_in_progress + num - tenant.max_concurrent
        over_queued = counts.num_queued + num - tenant.max_queued
        wait_s, what = 0.0, ""
        if over > 0:
            wait_s = counts.ends.seconds_for(over, now)
            what = f"{counts.num_in_progress} sequences in progress; your limit is "
            what += f"{tenant.max_concurrent}"
        if over_queued > 0:
            queued_s = counts.starts.seconds_for(over_queued, now)
            if not what or queued_s > wait_s:
                wait_s = queued_s
                what = f"{counts.num_queued} sequences waiting for their first token; your limit "
                what += f"is {tenant.max_queued}"
        if what:
            retry_s = min(max(wait_s, self.min_retry_s), self.max_retry_s)
            raise TooManyRequests(
                f"You have {what}. Try again in {math.ceil(retry_s)} s.", retry_after_s=retry_s
            )

    def _started(self, tenant_id: str) -> None:
        counts = self._tenants[tenant_id]
        counts.num_queued -= 1
        counts.starts.add(self.clock())

    def _released(self, ticket: Ticket, num: int, queued: int) -> None:
        counts, now = self._tenants[ticket.tenant_id], self.clock()
        counts.num_in_progress -= num
        counts.num_queued -= queued
        counts.ends.add(now, num)
        if queued:
            counts.starts.add(now, queued)
        self._tickets.discard(ticket)
