"""Tenants with work, in the order of their accounts. Standard library only.

Accounts change with every token, the order is asked for a few times a step: so an account that has
moved is noted, and put in its place when somebody looks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from math import floor, isclose

from engine.account import Account

Entry = tuple[float, str]
"""An account's `key` and its tenant."""


class Standings:
    """The accounts of tenants that have a request, waiting or running, and their weights."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._order: list[Entry] = []  # ascending but for those in `_moved`
        self._moved: set[Account] = set()  # whose value may differ from their key
        self._weight = 0.0

    def __iter__(self) -> Iterator[Account]:
        """In the order as it was last asked for."""
        return (self._accounts[tenant] for _, tenant in self._order)

    def add(self, account: Account) -> None:
        """Its tenant has work from now on."""
        self._accounts[account.tenant] = account
        account.key = account.value
        insort(self._order, (account.key, account.tenant))
        self._weight += account.weight

    def remove(self, account: Account) -> None:
        """Its tenant has no work any more."""
        self._unlist(account)
        self._moved.discard(account)
        del self._accounts[account.tenant]
        # Exactly 0 where nobody is left: what would be left over is rounding.
        self._weight = self._weight - account.weight if self._order else 0.0

    def move(self, account: Account) -> None:
        """The value of an account in the order may differ from its key."""
        self._moved.add(account)

    def reweigh(self, account: Account, weight: float) -> None:
        """The account's weight is about to change to this."""
        if account.tenant in self._accounts:
            self._weight += weight - account.weight

    def ascending(self) -> list[Entry]:
        """The order itself, least account first: to be read, and only until an account moves."""
        self._catch_up()
        return self._order

    def among(self, groups: tuple[Collection[str], ...]) -> list[Entry]:
        """A list of one's own, ascending, with at least those of these tenants that have work."""
        order = self.ascending()
        if sum(map(len, groups)) * 4 >= len(order):
            return order.copy()
        known = (self._accounts.get(tenant) for tenant in set[str]().union(*groups))
        return sorted((account.key, account.tenant) for account in known if account is not None)

    def spread(self) -> float:
        """Of the tenants with requests waiting, the largest account less the least. Looks from both
        ends of the order, past those whose every request has a row."""
        order = self.ascending()
        ends = [(self._accounts[tenant] for _, tenant in end) for end in (order, reversed(order))]
        least, largest = (next((a.value for a in end if a.num_waiting), 0.0) for end in ends)
        return max(0.0, largest - least)

    def share(self, account: Account, total: int) -> int:
        """The part of `total` that falls to the account: its weight over all weights, its own among
        them with work or without; at least 1."""
        weight = self._weight + (0.0 if account.tenant in self._accounts else account.weight)
        return max(1, floor(total * account.weight / weight + 1e-9))

    def check(self, active: set[Account]) -> None:
        """Raise AssertionError where an invariant does not hold. active: all with work."""
        assert self.ascending() == sorted(set(self._order))
        assert set(self) == set(self._accounts.values()) == active
        assert all(self._accounts[account.tenant] is account for account in active)
        weights = sum(account.weight for account in active)
        assert isclose(self._weight, weights, rel_tol=1e-6, abs_tol=1e-9)
        for account in active:
            assert isclose(account.key, account.value, rel_tol=1e-6, abs_tol=1e-3)

    def _catch_up(self) -> None:
        """Brings those that have moved to their places."""
        if len(self._moved) * 8 > len(self._order):
            for account in self._moved:
                account.key = account.value
            self._order = sorted((account.key, account.tenant) for account in list(self))
        else:
            for account in self._moved:
                self._unlist(account)
                account.key = account.value
                insort(self._order, (account.key, account.tenant))
        self._moved.clear()

    def _unlist(self, account: Account) -> None:
        """While some are in the wrong place the list is still in order by the keys in it."""
        del self._order[bisect_left(self._order, (account.key, account.tenant))]
