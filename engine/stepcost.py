"""What a step costs, and so how many tokens fit into a given time. Standard library only.

A device that computes what a step holds is measured as it runs (`LineCost`); one that pads steps to
passes of few sizes brings their costs along (`TableCost`).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.pass_costs import PassCosts, StepSize

KNEE = 1.8


class StepCost(Protocol):
    def observe(self, size: StepSize, seconds: float) -> None:
        """One step took `seconds` on the device. Empty steps teach nothing."""

    def budget(self, max_step_s: float, max_tokens: int, num_read: int) -> int:
        """Tokens, 0 .. max_tokens, of the largest step with prompts in it that is expected to stay
        within `max_step_s`, if its decoding rows read `num_read` tokens of context."""

    def padded(self, num_tokens: int) -> int:
        """The largest step with prompts in it that costs no more than one of `num_tokens`."""

    def knee(self, max_tokens: int) -> int:
        """Tokens, 0 .. max_tokens, of a step that costs KNEE times the smallest: up to here a step
        is mostly what every step costs, and tokens are cheap."""

    def base_s(self, size: StepSize) -> float:
        """What such a step takes without adapters, as measured at the start; 0: not known."""

    @property
    def token_s(self) -> float:
        """What a token more costs in a large step, in seconds."""


class Shares(NamedTuple):
    """A step's time, divided between its rows: seconds for each row, and for each of its tokens
    beyond the first."""

    row_s: float
    token_s: float


def divided(seconds: float, num_rows: int, num_tokens: int, token_s: float) -> Shares:
    """token_s: what a token more costs (`StepCost`); all rows share the rest alike."""
    if not num_rows:
        return Shares(0.0, 0.0)
    num_more = num_tokens - num_rows
    token_s = min(token_s, seconds / num_more) if num_more else 0.0
    return Shares((seconds - num_more * token_s) / num_rows, token_s)


class LineCost:
    """seconds(T) = fixed + per_token * T

    fitted by least squares over recent steps, older ones fading. Before the sizes seen differ
    enough to tell the two terms apart, all of the cost is put on the tokens: the budget is then too
    small rather than too large, and the next step, being of another size, tells more. fade: weight
    that a step keeps with each later one, in (0, 1).
    """

    def __init__(self, fade: float = 0.98) -> None:
        self._fade = fade
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, size: StepSize, seconds: float) -> None:
        num_tokens = size.num_tokens
        if num_tokens <= 0 or seconds <= 0:
            return
        f = self._fade
        self._n = f * self._n + 1
        self._x = f * self._x + num_tokens
        self._y = f * self._y + seconds
        self._xx = f * self._xx + num_tokens * num_tokens
        self._xy = f * self._xy + num_tokens * seconds

    def line(self) -> tuple[float, float]:
        """(fixed, per_token) in seconds, neither negative; (0, 0) before the first step."""
        if not self._n:
            return 0.0, 0.0
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if variance < 1e-3 * mean_x * mean_x:
            return 0.0, mean_y / mean_x
        per_token = (self._xy / self._n - mean_x * mean_y) / variance
        per_token = min(max(per_token, 0.0), mean_y / mean_x)
        return mean_y - per_token * mean_x, per_token

    def seconds(self, num_tokens: int) -> float:
        fixed, per_token = self.line()
        return fixed + per_token * num_tokens

    def budget(self, max_step_s: float, max_tokens: int, num_read: int = 0) -> int:
        fixed, per_token = self.line()
        if fixed + per_token * max_tokens <= max_step_s:
            return max_tokens
        if fixed >= max_step_s:
            return 0
        return min(max_tokens, int((max_step_s - fixed) / per_token))

    def padded(self, num_tokens: int) -> int:
        return num_tokens

    def knee(self, max_tokens: int) -> int:
        fixed, per_token = self.line()
        free = (KNEE - 1) * fixed
        return max_tokens if free >= per_token * max_tokens else int(free / per_token)

    def base_s(self, size: StepSize) -> float:
        return 0.0

    @property
    def token_s(self) -> float:
        return self.line()[1]


class TableCost:
    """The measured passes, times what recent steps with prompts took compared with them: adapters,
    whatever the measurement left out, and whatever has changed since. fade: as of LineCost."""

    def __init__(self, passes: PassCosts, fade: float = 0.95) -> None:
        self._passes = passes
        self._fade = fade
        self._observed = self._expected = 0.0

    def observe(self, size: StepSize, seconds: float) -> None:
        if size.is_decode or size.num_tokens <= 0 or seconds <= 0:
            return
        self._observed = self._fade * self._observed + seconds
        self._expected = self._fade * self._expected + self._passes.seconds(size)

    @property
    def ratio(self) -> float:
        """Observed over measured at the start; 1 before the first step."""
        return self._observed / self._expected if self._expected else 1.0

    def seconds(self, num_tokens: int, num_read: int = 0) -> float:
        """Of a step with prompts in it."""
        return self.ratio * self._passes.seconds(StepSize(num_tokens, num_read, False))

    def budget(self, max_step_s: float, max_tokens: int, num_read: int = 0) -> int:
        left = max_step_s - self.ratio * self._passes.mixed_read_s * num_read
        fitting = [n for n, seconds in self._passes.mixed if self.ratio * seconds <= left]
        return min(max_tokens, max(fitting, default=0))

    def padded(self, num_tokens: int) -> int:
        return self._passes.padded(num_tokens)

    def knee(self, max_tokens: int) -> int:
        most = KNEE * self._passes.mixed[0][1]
        return min(max_tokens, max(n for n, seconds in self._passes.mixed if seconds <= most))

    def base_s(self, size: StepSize) -> float:
        return self._passes.seconds(size)

    @property
    def token_s(self) -> float:
        num_tokens, seconds = self._passes.mixed[-1]
        return self.ratio * seconds / num_tokens


def step_cost(passes: PassCosts) -> StepCost:
    """For a device with such passes."""
    return TableCost(passes) if passes.mixed else LineCost()
