"""What service costs, in weighted tokens. Standard library only.

    tokens          w_p a prompt token that is computed, w_q an output token: known in advance
    device_seconds  w_s a second of the device. A step's time is divided between its rows: each pays
                    its tokens beyond the first at what a token more costs, and all pay the rest
                    alike
    page_seconds    w_s a second of all KV pages: each row pays for the part of them that it holds

The last two are known only once a step is over; until then a request is charged at what a token of
its kind has cost of late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from engine.config import AccountConfig
from engine.plan import StepPlan
from engine.stepcost import StepCost

FADE = 0.999


class Price(NamedTuple):
    """Weighted tokens for a token of the prompt, and of the output."""

    prompt: float
    output: float


class Prices(Protocol):
    def expected(self) -> Price:
        """For what is to come."""

    def amounts(self, plan: StepPlan, seconds: float) -> list[float] | None:
        """What each span of a plan that took so long has cost; None: its tokens at `expected`."""


class TokenPrices:
    def __init__(self, price: Price) -> None:
        self._price = price

    def expected(self) -> Price:
        return self._price

    def amounts(self, plan: StepPlan, seconds: float) -> list[float] | None:
        return None


Shares = Callable[[StepPlan, float], list[float]]
"""Seconds of each span of a plan that took so many."""


class MeasuredPrices:
    """`expected` is the mean over recent steps, and nothing before there were any. w_s: weighted
    tokens for a second, which `shares` divides."""

    def __init__(self, w_s: float, shares: Shares) -> None:
        self._w_s = w_s
        self._shares = shares
        self._prompt = _Mean()
        self._output = _Mean()

    def expected(self) -> Price:
        return Price(self._prompt.value, self._output.value)

    def amounts(self, plan: StepPlan, seconds: float) -> list[float] | None:
        amounts = [self._w_s * share for share in self._shares(plan, seconds)]
        for span, amount in zip(plan.spans, amounts, strict=True):
            is_prompt = span.start < len(span.sequence.request.prompt)
            (self._prompt if is_prompt else self._output).add(amount, span.num_tokens)
        return amounts


def device_shares(cost: StepCost) -> Shares:
    def shares(plan: StepPlan, seconds: float) -> list[float]:
        token_s = cost.token_s
        own = [token_s * (span.num_tokens - 1) for span in plan.spans]
        total = sum(own)
        if total > seconds:
            return [seconds * part / total for part in own]
        rest = (seconds - total) / max(1, len(own))
        return [part + rest for part in own]

    return shares


def page_shares(num_pages: int) -> Shares:
    """num_pages: of the arena, all that there are."""

    def shares(plan: StepPlan, seconds: float) -> list[float]:
        return [seconds * len(span.pages) / num_pages for span in plan.spans]

    return shares


def prices_of(config: AccountConfig, cost: StepCost, num_pages: int) -> Prices:
    match config.price:
        case "tokens":
            return TokenPrices(Price(config.w_p, config.w_q))
        case "device_seconds":
            return MeasuredPrices(config.w_s, device_shares(cost))
        case "page_seconds":
            return MeasuredPrices(config.w_s, page_shares(num_pages))


class _Mean:
    """Of a token, the older fading; 0 before there was any."""

    def __init__(self) -> None:
        self.value = self._amount = self._tokens = 0.0

    def add(self, amount: float, num_tokens: int) -> None:
        self._amount = FADE * self._amount + amount
        self._tokens = FADE * self._tokens + num_tokens
        self.value = self._amount / self._tokens
