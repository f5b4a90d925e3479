"""Plain counters of the core, handed over once a second. Standard library only."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from engine.adapters.version import Tier
from engine.usage import Usage, UsageBook

RECENT_STEPS = 1024


@dataclass(slots=True)
class Counters:
    """Totals since the start; `usage` has them by tenant. busy_s, base_s: of the steps whose cost
    without adapters is known, what they took and that cost."""

    usage: UsageBook
    num_steps: int = 0
    num_replayed: int = 0
    busy_s: float = 0.0
    base_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    num_preemptions: int = 0
    num_moves: int = 0
    arrivals: Counter[Tier] = field(default_factory=Counter)
    """Requests by where their adapter was when they came."""
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def prompt(self, usage: Usage, num_tokens: int, num_cached: int) -> None:
        """Of a request that was admitted; num_cached of its tokens needn't be computed."""
        self.prompt_tokens += num_tokens
        self.cached_tokens += num_cached
        usage.num_requests += 1
        usage.prompt_tokens += num_tokens
        usage.cached_tokens += num_cached

    def output(self, usage: Usage, num_tokens: int) -> None:
        self.output_tokens += num_tokens
        usage.output_tokens += num_tokens

    def step(self, seconds: float, base_s: float, replayed: bool) -> None:
        """One step. base_s: 0 where nothing is known of it."""
        self.num_steps += 1
        self.num_replayed += replayed
        self.step_s.append(seconds)
        if base_s:
            self.busy_s += seconds
            self.base_s += base_s

    def step_quantile(self, q: float) -> float:
        """Of the recent steps' seconds; 0 before the first."""
        ordered = sorted(self.step_s)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0
