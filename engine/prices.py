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

from typing import NamedTuple, Protocol

from engine.config import AccountConfig
from engine.plan import Span, StepPlan
from engine.stepcost import Shares

FADE = 0.999


class Price(NamedTuple):
    """Weighted tokens for a token of the prompt, and of the output."""

    prompt: float
    output: float


class StepPrice(NamedTuple):
    """Weighted tokens that a row of one step pays: for itself, for each of its tokens beyond the
    first, and for each page that it holds."""

    row: float
    token: float
    page: float

    def of(self, span: Span) -> float:
        return self.row + self.token * (span.num_tokens - 1) + self.page * len(span.pages)


class Prices(Protocol):
    @property
    def is_measured(self) -> bool:
        """Whether what a token has cost is known only afterwards."""

    def expected(self) -> Price:
        """For what is to come."""

    def step(self, plan: StepPlan, seconds: float, shares: Shares) -> StepPrice:
        """Of a plan that took so long, divided like this; nothing where it isn't measured."""


class TokenPrices:
    is_measured = False

    def __init__(self, price: Price) -> None:
        self._price = price

    def expected(self) -> Price:
        return self._price

    def step(self, plan: StepPlan, seconds: float, shares: Shares) -> StepPrice:
        return StepPrice(0.0, 0.0, 0.0)


class MeasuredPrices:
    """`expected` is the mean over recent steps, and nothing before there were any."""

    is_measured = True

    def __init__(self) -> None:
        self._prompt = _Mean()
        self._output = _Mean()

    def expected(self) -> Price:
        return Price(self._prompt.value, self._output.value)

    def learn(self, plan: StepPlan, price: StepPrice, total: float) -> StepPrice:
        """The price, once `expected` knows of it. total: what all rows of the plan have paid."""
        size, spans = plan.size, plan.spans
        prompts = [span for span in spans if span[2] < span[0].num_prompt]  # start, sequence
        num_read = sum(span.num_tokens for span in prompts)
        paid = sum(map(price.of, prompts))
        self._prompt.add(paid, num_read, len(prompts))
        self._output.add(total - paid, size.num_tokens - num_read, len(spans) - len(prompts))
        return price


class DevicePrices(MeasuredPrices):
    """w_s: weighted tokens for a second of the device."""

    def __init__(self, w_s: float) -> None:
        super().__init__()
        self._w_s = w_s

    def step(self, plan: StepPlan, seconds: float, shares: Shares) -> StepPrice:
        price = StepPrice(self._w_s * shares.row_s, self._w_s * shares.token_s, 0.0)
        return self.learn(plan, price, self._w_s * seconds if plan.spans else 0.0)


class PagePrices(MeasuredPrices):
    """w_s: weighted tokens for a second of all pages; num_pages: of the arena, all that there
    are."""

    def __init__(self, w_s: float, num_pages: int) -> None:
        super().__init__()
        self._w_s = w_s
        self._num_pages = num_pages

    def step(self, plan: StepPlan, seconds: float, shares: Shares) -> StepPrice:
        page = self._w_s * seconds / self._num_pages
        num_held = sum([len(span.pages) for span in plan.spans])
        return self.learn(plan, StepPrice(0.0, 0.0, page), page * num_held)


def prices_of(config: AccountConfig, num_pages: int) -> Prices:
    match config.price:
        case "tokens":
            return TokenPrices(Price(config.w_p, config.w_q))
        case "device_seconds":
            return DevicePrices(config.w_s)
        case "page_seconds":
            return PagePrices(config.w_s, num_pages)


class _Mean:
    """Of a token, the older fading; 0 before there was any."""

    def __init__(self) -> None:
        self.value = self._amount = self._tokens = 0.0

    def add(self, amount: float, num_tokens: int, num_spans: int) -> None:
        """What so many spans have cost together; each makes the older fade."""
        if not num_tokens:
            return
        fade = FADE**num_spans
        self._amount = fade * self._amount + amount
        self._tokens = fade * self._tokens + num_tokens
        self.value = self._amount / self._tokens
