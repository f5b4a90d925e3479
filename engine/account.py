"""One tenant's account, and what one of its requests has been charged. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from engine.expectation import Expectation


@dataclass(slots=True, eq=False)
class Account:
    """Weighted tokens over the tenant's weight.

    settled      served, and what `lift` and others' service added
    outstanding  charged and not served yet
    floor        settled at the last lift: no refund takes the account below it
    num_requests its requests that wait or run: 0 is idle
    num_waiting  of those, the ones never admitted yet
    key          its place in the order of accounts
    turn_s       when it was last dealt prompt tokens, by the clock of the steps
    served_before, settled_before  `served` and `settled` when the two last parted: at a lift, a
                 change of weight or others' service
    told         `served` when other replicas were last told
    """

    tenant: str
    weight: float
    settled: float = 0.0
    outstanding: float = 0.0
    floor: float = 0.0
    num_requests: int = 0
    num_waiting: int = 0
    key: float = 0.0
    turn_s: float = -inf
    served_before: float = 0.0
    settled_before: float = 0.0
    told: float = 0.0
    expectation: Expectation = field(default_factory=Expectation)

    @property
    def value(self) -> float:
        return self.settled + self.outstanding

    @property
    def served(self) -> float:
        """Weighted tokens that were served here; it only grows."""
        return self.served_before + (self.settled - self.settled_before) * self.weight

    def raise_to(self, settled: float) -> None:
        """More that counts as settled but wasn't served here."""
        self.served_before = self.served
        self.settled = self.settled_before = max(self.settled, settled)

    def reweigh(self, weight: float) -> None:
        """What was settled stays; from now on service counts by the new weight."""
        self.served_before = self.served
        self.settled_before = self.settled
        self.weight = weight


@dataclass(slots=True, eq=False)
class Charge:
    """What a request still has outstanding. Prices are those of its admission, over the weight."""

    account: Account
    prompt_price: float = 0.0
    output_price: float = 0.0
    prompt_left: int = 0
    output_left: int = 0
    num_output: int = 0
    admitted: bool = False

    @property
    def outstanding(self) -> float:
        return self.prompt_left * self.prompt_price + self.output_left * self.output_price
