"""What each tenant with requests has in the core at present. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from engine.accounts import Accounts

MAX_TOLD = 500
"""Of the tenants whose requests all wait: telling ten thousand would take as long as a step."""


class TenantLoad(NamedTuple):
    """num_running  its requests that have been admitted; num_waiting: the others
    lag          its account less the least of those with requests, in weighted tokens: how far it
                 is ahead
    """

    tenant: str
    weight: float
    num_running: int
    num_waiting: int
    lag: float


def tenant_loads(accounts: Accounts, running: Iterable[str]) -> tuple[TenantLoad, ...]:
    """Of those with rows (`running`), and of the `MAX_TOLD` with requests whose turn is next."""
    busy = {account.tenant: account for account in islice(accounts.with_work(), MAX_TOLD)}
    least = min((account.value for account in busy.values()), default=0.0)
    busy |= {tenant: accounts.account(tenant) for tenant in running if tenant not in busy}
    return tuple(
        TenantLoad(
            a.tenant,
            a.weight,
            a.num_requests - a.num_waiting,
            a.num_waiting,
            max(0.0, a.value - least),
        )
        for a in busy.values()
    )
