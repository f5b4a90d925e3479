"""What deciding a step costs the processor, with many rows and thousands of tenants waiting."""

from __future__ import annotations

import pytest

from engine.config import AccountConfig, Order, Price
from tests.support.scheduling_cost import measure


@pytest.mark.parametrize(
    ("order", "price", "num_tenants"),
    [
        ("deficit", "tokens", 1_000),
        ("vtc", "device_seconds", 1_000),
        ("fcfs", "page_seconds", 10_000),
    ],
)
def test_a_step_of_256_rows_with_10000_waiting_is_decided_quickly(
    order: Order, price: Price, num_tenants: int
) -> None:
    """The bound is 0.5 ms each; here, on a machine busy with other things, five times that."""
    cost = measure(40, AccountConfig(order=order, price=price), num_tenants=num_tenants)
    assert cost["num_waiting"] > 9_000 and cost["num_running"] > 250
    assert cost["schedule_ms"] < 2.5
    assert cost["commit_ms"] < 2.5
