"""Who is served next: one account a tenant, in weighted tokens over its weight.

A request is charged when it is admitted: w_p a prompt token to compute, w_q an output token that is
expected. The charge is *outstanding* until it is served, then *settled*; account = settled +
outstanding, and the least account is served first. What is served stays settled for good; what the
request turns out not to need is taken off the outstanding part when it ends. So no refund can take
an account below the value it was lifted to, and asking for much and taking little gains nothing.

Standard library only.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from math import floor, isclose

from engine.config import AccountConfig
from engine.types import Tenant

HISTORY = 128
NEAR_EQUALS = 8
MAX_IDLE = 4096


@dataclass(slots=True, eq=False)
class Account:
    """settled      weighted tokens served, over the weight, and what `lift` added
    outstanding  charged and not served yet
    floor        settled at the last lift
    num_requests its requests that wait or run: 0 is idle
    """

    tenant: str
    weight: float
    settled: float = 0.0
    outstanding: float = 0.0
    floor: float = 0.0
    num_requests: int = 0
    key: float = 0.0  # its place in the order
    recent: deque[int] = field(default_factory=deque)  # past output lengths, oldest first
    ascending: list[int] = field(default_factory=list)  # the same, sorted

    @property
    def value(self) -> float:
        return self.settled + self.outstanding


@dataclass(slots=True, eq=False)
class _Charge:
    """What a request still has outstanding. Prices are those of its admission."""

    account: Account
    prompt_price: float = 0.0
    output_price: float = 0.0
    prompt_left: int = 0
    output_left: int = 0
    num_output: int = 0
    admitted: bool = False


class Accounts:
    """Calls for one request come in this order, by its id:

        arrive, admit, then computed and produced as it is served, finish

    A preempted request isn't admitted again: reading its tokens once more costs it nothing.

    Of more than `MAX_IDLE` idle tenants the longest idle is forgotten: should it come back, it is
    new, and begins where any tenant does that was idle for long.
    """

    def __init__(self, config: AccountConfig) -> None:
        self.config = config
        self._accounts: dict[str, Account] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()  # the longest idle first
        self._charges: dict[str, _Charge] = {}
        self._order: list[tuple[float, str]] = []  # tenants with work, ascending
        self._weight = 0.0  # of the tenants with work
        self._last_settled = 0.0  # of the tenant that was last to go idle

    # One request

    def arrive(self, request_id: str, tenant: Tenant) -> None:
        """The tenant has one more request, waiting. One that was idle is lifted."""
        account = self._accounts.get(tenant.id)
        if account is None:
            account = self._accounts[tenant.id] = Account(tenant.id, tenant.weight)
        if account.num_requests == 0:
            self._idle.pop(account.tenant, None)
            account.weight = tenant.weight
            self._lift(account)
            account.key = account.value
            insort(self._order, (account.key, account.tenant))
            self._weight += account.weight
        account.num_requests += 1
        self._charges[request_id] = _Charge(account)

    def admit(self, request_id: str, num_prompt: int, max_tokens: int) -> None:
        """Charge it. `num_prompt`: prompt tokens to compute, without those from the prefix cache.

        A request that was admitted before isn't charged again.
        """
        charge = self._charges[request_id]
        if charge.admitted:
            return
        account = charge.account
        charge.admitted = True
        charge.prompt_price = self.config.w_p / account.weight
        charge.output_price = self.config.w_q / account.weight
        charge.prompt_left = num_prompt
        charge.output_left = min(max_tokens, self.expected_output(account.tenant))
        account.outstanding += (
            charge.prompt_price * charge.prompt_left + charge.output_price * charge.output_left
        )
        self._reorder(account)

    def computed(self, request_id: str, num_tokens: int) -> None:
        """Prompt tokens of it were computed: that much is settled."""
        charge = self._charges[request_id]
        num_charged = min(num_tokens, charge.prompt_left)
        charge.prompt_left -= num_charged
        _settle(charge.account, num_charged * charge.prompt_price)

    def produced(self, request_id: str, num_tokens: int = 1) -> None:
        """Output tokens of it were produced. Beyond the expected number each is charged now."""
        charge = self._charges[request_id]
        num_charged = min(num_tokens, charge.output_left)
        charge.output_left -= num_charged
        charge.num_output += num_tokens
        _settle(charge.account, num_charged * charge.output_price)
        if num_tokens > num_charged:
            charge.account.settled += (num_tokens - num_charged) * charge.output_price
            self._reorder(charge.account)

    def finish(self, request_id: str, *, completed: bool) -> None:
        """The request is over, admitted or not; what it left outstanding is taken off.

        completed: it ended by itself, so its length tells what to expect of the tenant.
        """
        charge = self._charges.pop(request_id)
        account = charge.account
        account.outstanding -= (
            charge.prompt_left * charge.prompt_price + charge.output_left * charge.output_price
        )
        if completed:
            _remember(account, charge.num_output)
        account.num_requests -= 1
        if account.num_requests:
            self._reorder(account)
            return
        account.outstanding = 0.0  # exactly: what is left is rounding
        self._last_settled = account.settled
        self._unlist(account)
        self._weight = self._weight - account.weight if self._order else 0.0
        self._idle[account.tenant] = None
        if len(self._idle) > MAX_IDLE:
            del self._accounts[self._idle.popitem(last=False)[0]]

    # Who is next

    def expected_output(self, tenant: str) -> int:
        """Output tokens expected of the tenant's next request: its past 90th percentile."""
        account = self._accounts.get(tenant)
        if account is None or not account.ascending:
            return self.config.default_output
        return account.ascending[-(-len(account.ascending) * 9 // 10) - 1]

    def order(self) -> list[str]:
        """Tenants with work, the least account first."""
        return [tenant for _, tenant in self._order]

    def turns(self, tenants: Container[str]) -> Turns:
        """A round of serving these tenants (those of them that have work), least account first."""
        return Turns(self, [entry for entry in self._order if entry[1] in tenants])

    def account(self, tenant: str) -> Account:
        """Read only. Raises KeyError for a tenant that never arrived, or was forgotten."""
        return self._accounts[tenant]

    def share(self, tenant: str, total: int) -> int:
        """The tenant's part of `total` rows or pages: its weight over the weights of all tenants
        with work, at least 1. Raises KeyError as `account` does."""
        account = self._accounts[tenant]
        weight = self._weight if account.num_requests else self._weight + account.weight
        return max(1, floor(total * account.weight / weight + 1e-9))

    def locality_score(self, wait_s: float, num_tokens: int, in_batch: bool) -> float:
        """Seconds by which to choose between near-equals: a request of `num_tokens` whose adapter
        is in the batch already goes ahead of those that have waited up to w_local x tokens longer,
        and of no other."""
        return wait_s + (self.config.w_local * num_tokens if in_batch else 0.0)

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        active = {a.tenant for a in self._accounts.values() if a.num_requests}
        assert self._order == sorted(self._order)
        assert [t for _, t in self._order] == [t for _, t in sorted(set(self._order))]
        assert {tenant for _, tenant in self._order} == active
        assert set(self._idle) == set(self._accounts) - active and len(self._idle) <= MAX_IDLE
        weights = sum(self._accounts[tenant].weight for tenant in active)
        assert isclose(self._weight, weights, rel_tol=1e-6, abs_tol=1e-9)
        outstanding = dict.fromkeys(self._accounts, 0.0)
        num_requests = dict.fromkeys(self._accounts, 0)
        for charge in self._charges.values():
            num_requests[charge.account.tenant] += 1
            outstanding[charge.account.tenant] += (
                charge.prompt_left * charge.prompt_price + charge.output_left * charge.output_price
            )
        for tenant, account in self._accounts.items():
            assert account.settled >= account.floor
            assert account.num_requests == num_requests[tenant]
            assert isclose(account.outstanding, outstanding[tenant], rel_tol=1e-6, abs_tol=1e-3)
            assert isclose(account.key, account.value, rel_tol=1e-6, abs_tol=1e-3) or (
                tenant not in active
            )
            assert sorted(account.recent) == account.ascending

    def _lift(self, account: Account) -> None:
        """Back from idle, it begins where the least of the others stands: idleness banks nothing.
        Where nobody else has work, that is where the last to go idle stood."""
        others = [self._accounts[tenant].settled for _, tenant in self._order]
        account.settled = max(account.settled, min(others, default=self._last_settled))
        account.floor = account.settled

    def _reorder(self, account: Account) -> None:
        if account.value != account.key:
            self._unlist(account)
            account.key = account.value
            insort(self._order, (account.key, account.tenant))

    def _unlist(self, account: Account) -> None:
        del self._order[bisect_left(self._order, (account.key, account.tenant))]


class Turns:
    """Who is next, again and again, while the accounts change under it.

    `next` hands out a tenant and drops it; `again` brings it back at its present account. A tenant
    whose next request can't go isn't brought back and holds up nobody.
    """

    def __init__(self, accounts: Accounts, entries: list[tuple[float, str]]) -> None:
        """entries: (account, tenant), ascending."""
        self._accounts = accounts
        self._heap = entries

    def next(self, score: Callable[[str], float] | None = None) -> str | None:
        """The tenant of least account; with `score` (see `locality_score`), the best-scored one of
        those within `locality_slack_tokens` of it, `NEAR_EQUALS` of them at most. None: no more."""
        if not self._heap:
            return None
        first = heapq.heappop(self._heap)
        if score is None:
            return first[1]
        near = [first]
        limit = first[0] + self._accounts.config.locality_slack_tokens
        while self._heap and len(near) < NEAR_EQUALS and self._heap[0][0] <= limit:
            near.append(heapq.heappop(self._heap))
        best = near[0]
        if len(near) > 1:
            best = max(near, key=lambda entry: score(entry[1]))
            for entry in near:
                if entry is not best:
                    heapq.heappush(self._heap, entry)
        return best[1]

    def again(self, tenant: str) -> None:
        heapq.heappush(self._heap, (self._accounts.account(tenant).value, tenant))


def _settle(account: Account, amount: float) -> None:
    account.outstanding -= amount
    account.settled += amount


def _remember(account: Account, num_output: int) -> None:
    account.recent.append(num_output)
    insort(account.ascending, num_output)
    if len(account.recent) > HISTORY:
        oldest = account.recent.popleft()
        del account.ascending[bisect_left(account.ascending, oldest)]
