"""What a step's rows pay, by hand."""

from __future__ import annotations

import pytest

from engine.config import AccountConfig
from engine.plan import Span, StepPlan
from engine.prices import Price, Prices, prices_of
from engine.sequence import Sequence
from engine.stepcost import divided
from engine.types import Request, Tenant


def span(num_prompt: int, start: int, num_tokens: int, num_pages: int) -> Span:
    prompt = tuple(range(num_prompt))
    sequence = Sequence(Request("r", Tenant("t"), None, prompt, 9), 0.0, tokens=list(prompt))
    return Span(sequence, 0, start, num_tokens, -1, True, False, tuple(range(num_pages)))


PLAN = StepPlan(0, (span(20, 0, 11, 2), span(5, 6, 1, 3), span(5, 9, 1, 5)))


TOKEN_S = 0.01


def paid(prices: Prices, seconds: float) -> list[float]:
    shares = divided(seconds, len(PLAN.spans), PLAN.num_tokens, TOKEN_S)
    return [*map(prices.step(PLAN, seconds, shares).of, PLAN.spans)]


def test_tokens_cost_what_the_configuration_says() -> None:
    prices = prices_of(AccountConfig(w_p=1.5, w_q=3.0), 100)
    assert prices.expected() == Price(1.5, 3.0) and not prices.is_measured
    assert paid(prices, 1.0) == [0.0, 0.0, 0.0]


def test_of_a_steps_seconds_each_row_pays_its_further_tokens_and_a_part_of_the_rest() -> None:
    prices = prices_of(AccountConfig(price="device_seconds", w_s=1000.0), 100)
    assert prices.expected() == Price(0.0, 0.0)
    assert paid(prices, 0.4) == pytest.approx([200.0, 100.0, 100.0])  # 10 x 10 ms, and 100 ms each
    assert prices.expected() == pytest.approx((200 / 11, 100.0))
    assert paid(prices, 0.05) == pytest.approx([50.0, 0.0, 0.0])


def test_page_seconds_are_the_pages_that_a_row_holds_of_all() -> None:
    prices = prices_of(AccountConfig(price="page_seconds", w_s=1000.0), 100)
    assert paid(prices, 0.5) == pytest.approx([10.0, 15.0, 25.0])
    assert prices.expected() == pytest.approx((10 / 11, 20.0))


def test_what_a_token_has_cost_of_late_counts_for_more() -> None:
    prices = prices_of(AccountConfig(price="page_seconds", w_s=1000.0), 100)
    for _ in range(2000):
        paid(prices, 0.5)
    for _ in range(2000):
        paid(prices, 1.0)
    assert prices.expected() == pytest.approx((20 / 11, 40.0), rel=0.15)


def test_a_steps_time_is_divided_whole() -> None:
    assert divided(0.4, 3, 13, TOKEN_S) == pytest.approx((0.1, 0.01))
    assert divided(0.05, 3, 13, TOKEN_S) == pytest.approx((0.0, 0.005)), "tokens cost less, then"
    assert divided(0.4, 4, 4, TOKEN_S) == pytest.approx((0.1, 0.0))
    assert divided(0.4, 0, 0, TOKEN_S) == (0.0, 0.0)
