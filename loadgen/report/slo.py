"""What counts as a good answer."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.client.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Slo:
    """first_s: at most so long to the first token, from when the request was due; token_s: at most
    so long for a later token, on average over the answer."""

    first_s: float = 6.0
    token_s: float = 0.2

    def met(self, outcome: Outcome) -> bool:
        """Whole, and within both."""
        if not outcome.ok or outcome.first_s is None or outcome.first_s > self.first_s:
            return False
        return outcome.token_s is None or outcome.token_s <= self.token_s
