"""What a step costs, measured, and so how many tokens fit into a given time.

    seconds(T) = fixed + per_token * T

fitted by least squares over recent steps, older ones fading. Before the sizes seen differ enough to
tell the two terms apart, all of the cost is put on the tokens: the budget is then too small rather
than too large, and the next step, being of another size, tells more. Standard library only.
"""

from __future__ import annotations


class StepCost:
    """fade: weight that a step keeps with each later one, in (0, 1)."""

    def __init__(self, fade: float = 0.98) -> None:
        self._fade = fade
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """One step of `num_tokens` took `seconds` on the device. Empty steps teach nothing."""
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

    def budget(self, max_step_s: float, max_tokens: int) -> int:
        """Tokens of a step that is expected to stay within `max_step_s`; 0 .. max_tokens."""
        fixed, per_token = self.line()
        if fixed + per_token * max_tokens <= max_step_s:
            return max_tokens
        if fixed >= max_step_s:
            return 0
        return min(max_tokens, int((max_step_s - fixed) / per_token))
