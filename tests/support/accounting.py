"""Accounts with prices that can be worked out by hand, and what tenants do to them."""

from __future__ import annotations

from dataclasses import replace

from engine.accounts import Accounts
from engine.config import AccountConfig
from engine.prices import prices_of
from engine.turns import Entries, Turns
from engine.types import Tenant

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")
W_P, W_Q = 1.0, 2.0


def accounts(**fields: object) -> Accounts:
    config = replace(AccountConfig(w_p=W_P, w_q=W_Q, default_output=256), **fields)  # type: ignore[arg-type]
    return Accounts(config, prices_of(config, 100))


class Waiting:
    """What tenants wait for: `orders` of the next request of each."""

    def __init__(self, orders: dict[str, float] | None = None) -> None:
        self.orders = orders or {}
        self.num_asked = 0

    def age(self, tenant: str) -> float:
        self.num_asked += 1
        return self.orders[tenant]

    def by_age(self) -> Entries:
        return sorted((order, tenant) for tenant, order in self.orders.items())


def turns_of(books: Accounts, tenants: set[str]) -> Turns:
    return books.turns(tenants, aged=Waiting())


def serve(books: Accounts, request_id: str, tenant: Tenant, num_prompt: int, num_out: int) -> None:
    """A whole request, ending by itself."""
    books.arrive(request_id, tenant)
    books.admit(request_id, num_prompt, num_out)
    books.computed(request_id, num_prompt)
    books.produced(request_id, num_out)
    books.finish(request_id, completed=True)
    books.check()


def state(books: Accounts, tenant: Tenant) -> tuple[float, float]:
    books.check()
    account = books.account(tenant.id)
    return account.settled, account.outstanding
