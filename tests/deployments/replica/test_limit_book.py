"""Which ingress's word on a tenant's limits a replica takes."""

from __future__ import annotations

import pytest

from deployments.orders.tier_orders import TenantLimits, limits_order
from deployments.replica.limit_book import LimitBook
from engine.errors import InvalidRequest
from engine.messages import SetLimits
from engine.types import Tenant

OLD, NEW = Tenant("a", weight=1.0), Tenant("a", weight=3.0)
OTHER = Tenant("b", hard_kv_share=0.5)


def test_an_ingress_that_is_behind_undoes_nothing() -> None:
    book = LimitBook()
    ahead = limits_order([TenantLimits(NEW, 9), TenantLimits(OTHER, 4)])
    behind = limits_order([TenantLimits(OLD, 8), TenantLimits(OTHER, 5)])
    assert book.read(ahead) == SetLimits((NEW, OTHER))
    assert book.read(ahead) == SetLimits((NEW, OTHER)), "told again, it may not have arrived"
    assert book.read(behind) == SetLimits((OTHER,))
    assert book.read(limits_order([TenantLimits(OLD, 10)])) == SetLimits((OLD,))


def test_an_order_of_another_release_is_read_as_far_as_it_is_known() -> None:
    order = limits_order([TenantLimits(NEW, 9)])
    del order["tenants"][0]["rev"]
    order["tenants"][0]["newer"] = 1
    book = LimitBook()
    assert book.read(order) == SetLimits((NEW,))
    for bad in ({**order, "v": 2}, {"v": 1}, {"v": 1, "tenants": [1]}, {"v": 1, "tenants": [{}]}):
        with pytest.raises(InvalidRequest):
            book.read(bad)
