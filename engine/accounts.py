"""Who is served next: one account a tenant, in weighted tokens over its weight.

A request is charged when it is admitted: its prompt tokens to compute and the output that is
expected (`engine.prices`). The charge is *outstanding* until it is served, then *settled*; account
= settled + outstanding, and the least account is served first. What is served stays settled for
good; what the request turns out not to need is taken off the outstanding part when it ends. So no
refund can take an account below the value it was lifted to, and asking for much and taking little
gains nothing.

Standard library only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from math import isclose

from engine.account import Account, Charge
from engine.config import AccountConfig
from engine.frontier import Frontier
from engine.prices import Prices
from engine.standings import Standings
from engine.turns import Aged, Turns
from engine.types import Tenant

MAX_IDLE = 4096
MIB = 1 << 20


class Accounts:
    """Calls for one request come in this order, by its id:

        arrive, admit, then computed and produced as it is served, finish

    A preempted request isn't admitted again: reading its tokens once more costs it nothing.

    Of more than `MAX_IDLE` idle tenants the longest idle is forgotten: should it come back, it is
    new, and begins where any tenant does that was idle for long.
    """

    def __init__(self, config: AccountConfig, prices: Prices) -> None:
        self.config = config
        self.prices = prices
        self._accounts: dict[str, Account] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()  # the longest idle first
        self._charges: dict[str, Charge] = {}
        self._standings = Standings()
        self._frontier = Frontier()
        self._touched: set[Account] = set()  # served since `take_touched`
        self._last_settled = 0.0  # of the tenant that was last to go idle

    def arrive(self, request_id: str, tenant: Tenant) -> None:
        """The tenant has one more request, waiting. One that had none waiting is lifted."""
        if (account := self._accounts.get(tenant.id)) is None:
            account = self._accounts[tenant.id] = Account(tenant.id, tenant.weight)
        self.reweigh(tenant)
        if account.num_waiting == 0:
            account.raise_to(self._least_settled(account))
            account.floor = account.settled
            if account.num_requests:
                self._standings.move(account)
            else:
                self._idle.pop(account.tenant, None)
                self._standings.add(account)
        account.num_requests += 1
        account.num_waiting += 1
        self._frontier.add(account)
        self._charges[request_id] = Charge(account)

    def reweigh(self, tenant: Tenant) -> None:
        """The tenant's weight, from now on. Nothing happens for one without an account."""
        account = self._accounts.get(tenant.id)
        if account is not None and account.weight != tenant.weight:
            self._standings.reweigh(account, tenant.weight)
            account.reweigh(tenant.weight)

    def admit(self, request_id: str, num_prompt: int, max_tokens: int) -> None:
        """Charge it. `num_prompt`: prompt tokens to compute, without those from the prefix cache.

        A request that was admitted before isn't charged again.
        """
        charge = self._charges[request_id]
        if charge.admitted:
            return
        account = charge.account
        charge.admitted = True
        account.num_waiting -= 1
        price = self.prices.expected()
        charge.prompt_price = price.prompt / account.weight
        charge.output_price = price.output / account.weight
        charge.prompt_left = num_prompt
        charge.output_left = min(max_tokens, self._declared(account, max_tokens))
        account.outstanding += charge.outstanding
        self._standings.move(account)

    def turn(self, tenant: str, now: float) -> None:
        """The tenant is dealt prompt tokens."""
        self._accounts[tenant].turn_s = now

    def computed(self, request_id: str, num_tokens: int, amount: float | None = None) -> None:
        """Prompt tokens of it were computed: that much is settled. amount: what they have cost,
        where that was measured; reading them again is free."""
        charge = self._charges[request_id]
        num_charged = min(num_tokens, charge.prompt_left)
        charge.prompt_left -= num_charged
        self._settle(charge, num_charged * charge.prompt_price, amount if num_charged else None)

    def produced(self, request_id: str, num_tokens: int = 1, amount: float | None = None) -> None:
        """Output tokens of it were produced. Beyond the expected number each is charged now."""
        charge = self._charges[request_id]
        account, price, left = charge.account, charge.output_price, charge.output_left
        num_charged = num_tokens if num_tokens < left else left
        charge.output_left = left - num_charged
        charge.num_output += num_tokens
        account.outstanding -= num_charged * price
        account.settled += num_tokens * price if amount is None else amount / account.weight
        self._touched.add(account)
        if amount is not None or num_charged != num_tokens:
            self._standings.move(account)

    def finish(self, request_id: str, *, completed: bool) -> None:
        """The request is over, admitted or not; what it left outstanding is taken off.

        completed: it ended by itself, so its length tells what to expect of the tenant.
        """
        charge = self._charges.pop(request_id)
        account = charge.account
        account.outstanding -= charge.outstanding
        if completed:
            account.expectation.remember(charge.num_output)
        account.num_requests -= 1
        account.num_waiting -= not charge.admitted
        if account.num_requests:
            self._standings.move(account)
            return
        account.outstanding = 0.0  # exactly: what is left is rounding
        self._last_settled = account.settled
        self._standings.remove(account)
        self._idle[account.tenant] = None
        if len(self._idle) > MAX_IDLE:
            self._forget(self._idle.popitem(last=False)[0])

    def loaded(self, tenant: str, num_bytes: int) -> None:
        """Bytes of an adapter were loaded for the tenant. Nothing happens where it is forgotten."""
        account = self._accounts.get(tenant)
        if account is not None:
            account.settled += self.config.w_load * num_bytes / MIB / account.weight
            self._touched.add(account)
            if account.num_requests:
                self._standings.move(account)

    def served_elsewhere(self, tenant: str, amount: float) -> None:
        """Weighted tokens over its weight that others served it, as far as they count here."""
        account = self._accounts[tenant]
        account.raise_to(account.settled + amount)
        self._standings.move(account)

    def take_touched(self) -> set[Account]:
        """Accounts of tenants served since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def with_work(self) -> Iterator[Account]:
        return iter(self._standings)

    def spread(self) -> float:
        """Of the tenants with requests waiting, the largest account less the least."""
        return self._standings.spread()

    def expected_output(self, tenant: str) -> int:
        """Output tokens expected of the tenant's next request."""
        account = self._accounts.get(tenant)
        default = self.config.default_output
        return default if account is None else account.expectation.output(default)

    def order(self) -> list[str]:
        """Tenants with work, the least account first."""
        return [tenant for _, tenant in self._standings.ascending()]

    def turns(
        self,
        *groups: Collection[str],
        aged: Aged,
        is_candidate: Callable[[str], bool] | None = None,
        max_looks: int | None = None,
        slack: float | None = None,
    ) -> Turns:
        """A round of serving the tenants of these groups; one without work is passed over. aged:
        what they wait for, whose order `fcfs` is. is_candidate, max_looks, slack (None: the
        configuration's): see `Turns`."""
        may = is_candidate or (lambda tenant: any(tenant in group for group in groups))
        if self.config.order == "fcfs":
            return Turns(aged.by_age(), aged.age, may, 0.0, max_looks, are_bounds=True)
        if slack is None:
            slack = self.config.locality_slack_tokens
        return Turns(self._standings.among(groups), self._value, may, slack, max_looks)

    @property
    def is_fair(self) -> bool:
        """Whether tenants' accounts and shares count at all."""
        return self.config.order != "fcfs"

    def account(self, tenant: str) -> Account:
        """Read only. Raises KeyError for a tenant that never arrived, or was forgotten."""
        return self._accounts[tenant]

    def standing(self, tenant: str) -> float:
        """The account's value, where the order goes by it; else everybody stands at 0. Raises
        KeyError as `account` does."""
        return self._accounts[tenant].value if self.is_fair else 0.0

    def lead(self, ahead: str, behind: str) -> float:
        """How far one account is ahead of another. Raises KeyError as `account` does."""
        return self._accounts[ahead].value - self._accounts[behind].value

    def price_of_reading(self, tenant: str, num_tokens: int) -> float:
        """Of so many tokens once more, and the slack: of two accounts no further apart than that,
        neither is clearly ahead."""
        price = self.prices.expected().prompt / self._accounts[tenant].weight
        return self.config.locality_slack_tokens + price * num_tokens

    def share(self, tenant: str, total: int) -> int:
        """The tenant's part of `total` rows or pages: its weight over the weights of all tenants
        with work, at least 1. Raises KeyError as `account` does."""
        return self._standings.share(self._accounts[tenant], total)

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        self._standings.check({a for a in self._accounts.values() if a.num_requests})
        idle = {tenant for tenant, account in self._accounts.items() if not account.num_requests}
        assert set(self._idle) == idle and len(self._idle) <= MAX_IDLE
        charges: dict[str, list[Charge]] = {tenant: [] for tenant in self._accounts}
        for charge in self._charges.values():
            charges[charge.account.tenant].append(charge)
        for tenant, account in self._accounts.items():
            mine = charges[tenant]
            outstanding = sum(charge.outstanding for charge in mine)
            assert account.settled >= account.floor
            assert account.num_requests == len(mine)
            assert account.num_waiting == sum(not charge.admitted for charge in mine)
            assert isclose(account.outstanding, outstanding, rel_tol=1e-6, abs_tol=1e-3)
            account.expectation.check()
        self._frontier.check(self._accounts)

    def _declared(self, account: Account, max_tokens: int) -> int:
        """Output tokens to charge at admission."""
        if self.config.order == "vtc":
            return 0
        if self.config.charge == "budget":
            return max_tokens
        return self.expected_output(account.tenant)

    def _settle(self, charge: Charge, charged: float, amount: float | None) -> None:
        """What was charged is outstanding no longer; it, or what it has really cost, is settled."""
        account = charge.account
        settled = charged if amount is None else amount / account.weight
        account.outstanding -= charged
        account.settled += settled
        self._touched.add(account)
        if settled != charged:
            self._standings.move(account)

    def _least_settled(self, newcomer: Account) -> float:
        """Where a tenant begins that had nothing waiting: where the least of those stands that have
        something waiting, so that neither idleness nor a lone request in progress banks anything.
        Nobody waits: the least with work; nobody has any: where the last to go idle stood."""
        if (least := self._frontier.least()) is not None:
            return least
        others = (a.settled for a in self.with_work() if a is not newcomer)
        return min(others, default=self._last_settled if not newcomer.num_requests else 0.0)

    def _forget(self, tenant: str) -> None:
        account = self._accounts.pop(tenant)
        self._touched.discard(account)
        self._frontier.forget(account)

    def _value(self, tenant: str) -> float:
        return self._accounts[tenant].value
