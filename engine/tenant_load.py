"""What each tenant with requests has in the core at present. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.account import Account


class TenantLoad(NamedTuple):
    """num_running  its requests that have been admitted; num_waiting: the others
    lag          its account less the least of those here, in weighted tokens: who is ahead
    """

    tenant: str
    weight: float
    num_running: int
    num_waiting: int
    lag: float


def tenant_loads(accounts: Iterable[Account]) -> tuple[TenantLoad, ...]:
    """Of accounts with requests."""
    busy = list(accounts)
    least = min((account.value for account in busy), default=0.0)
    return tuple(
        TenantLoad(
            a.tenant, a.weight, a.num_requests - a.num_waiting, a.num_waiting, a.value - least
        )
        for a in busy
    )
