"""Plain counters of the core, handed over once a second. Standard library only."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from engine.adapters.version import Tier

RECENT_STEPS = 1024


@dataclass(slots=True)
class Counters:
    """Totals since the start. `served` counts tokens (prompt computed and output) by tenant. busy_s
    and base_s: of the steps whose cost without adapters is known, what they took and that cost."""

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
    served: dict[str, float] = field(default_factory=dict)
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def prompt(self, tenant: str, num_computed: int, num_cached: int) -> None:
        self.prompt_tokens += num_computed + num_cached
        self.cached_tokens += num_cached
        self.served[tenant] = self.served.get(tenant, 0.0) + num_computed

    def output(self, tenant: str, num_tokens: int) -> None:
        self.output_tokens += num_tokens
        self.served[tenant] = self.served.get(tenant, 0.0) + num_tokens

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
