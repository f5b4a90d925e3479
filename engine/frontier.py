"""Where the least of the tenants stands that have something waiting. Standard library only."""

from __future__ import annotations

import heapq

from engine.account import Account


class Frontier:
    """A heap of what was settled, which catches up when it is asked: settled only grows."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._listed: dict[str, Account] = {}

    def add(self, account: Account) -> None:
        """It has something waiting. It leaves by itself once it hasn't."""
        if account.tenant not in self._listed:
            self._listed[account.tenant] = account
            heapq.heappush(self._heap, (account.settled, account.tenant))

    def forget(self, account: Account) -> None:
        """There will be no such account any more."""
        if self._listed.pop(account.tenant, None) is not None:
            self._heap = [entry for entry in self._heap if entry[1] != account.tenant]
            heapq.heapify(self._heap)

    def least(self) -> float | None:
        """The least settled; None where nobody has anything waiting."""
        heap = self._heap
        while heap:
            settled, tenant = heap[0]
            account = self._listed[tenant]
            if not account.num_waiting:
                heapq.heappop(heap)
                del self._listed[tenant]
            elif account.settled != settled:
                heapq.heapreplace(heap, (account.settled, tenant))
            else:
                return settled
        return None

    def check(self, accounts: dict[str, Account]) -> None:
        assert sorted(tenant for _, tenant in self._heap) == sorted(self._listed)
        for tenant, account in accounts.items():
            assert not account.num_waiting or self._listed[tenant] is account
        assert all(accounts[tenant] is account for tenant, account in self._listed.items())
        assert all(self._listed[tenant].settled >= settled for settled, tenant in self._heap)
