"""What a step's rows pay, by hand."""

from __future__ import annotations

import pytest

from engine.config import AccountConfig
from engine.pass_costs import StepSize
from engine.plan import Span, StepPlan
from engine.prices import Price, prices_of
from engine.sequence import Sequence
from engine.stepcost import LineCost
from engine.types import Request, Tenant


def span(num_prompt: int, start: int, num_tokens: int, num_pages: int) -> Span:
    prompt = tuple(range(num_prompt))
    sequence = Sequence(Request("r", Tenant("t"), None, prompt, 9), 0.0, tokens=list(prompt))
    return Span(sequence, 0, start, num_tokens, -1, True, False, tuple(range(num_pages)))


PLAN = StepPlan(0, (span(20, 0, 11, 2), span(5, 6, 1, 3), span(5, 9, 1, 5)))


def cost_of(token_s: float, fixed_s: float) -> LineCost:
    cost = LineCost()
    for num_tokens in (1, 100, 10, 50, 200):
        cost.observe(StepSize(num_tokens, 0, False), fixed_s + token_s * num_tokens)
    return cost


def test_tokens_cost_what_the_configuration_says() -> None:
    prices = prices_of(AccountConfig(w_p=1.5, w_q=3.0), LineCost(), 100)
    assert prices.expected() == Price(1.5, 3.0) and prices.amounts(PLAN, 1.0) is None


def test_of_a_steps_seconds_each_row_pays_its_further_tokens_and_a_part_of_the_rest() -> None:
    config = AccountConfig(price="device_seconds", w_s=1000.0)
    prices = prices_of(config, cost_of(0.01, 0.2), 100)
    assert prices.expected() == Price(0.0, 0.0)
    amounts = prices.amounts(PLAN, 0.4)
    assert amounts == pytest.approx([200.0, 100.0, 100.0])  # 10 x 10 ms, and 100 ms each
    assert prices.expected() == pytest.approx((200 / 11, 100.0), rel=2e-3)
    assert prices.amounts(PLAN, 0.05) == pytest.approx([50.0, 0.0, 0.0])


def test_page_seconds_are_the_pages_that_a_row_holds_of_all() -> None:
    prices = prices_of(AccountConfig(price="page_seconds", w_s=1000.0), LineCost(), 100)
    assert prices.amounts(PLAN, 0.5) == pytest.approx([10.0, 15.0, 25.0])
    assert prices.expected() == pytest.approx((10 / 11, 20.0), rel=2e-3)
