"""What is counted of every step and every request, for whoever asks for it.

`CoreStats` is what the service itself needs. This is what operators look at: it costs some
microseconds a step, and nothing where nobody asks. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.accounts import Accounts
from engine.adapters.cache import AdapterCache
from engine.arena import Arena
from engine.core_stats import Measures
from engine.histogram import ADAPTERS, SECONDS, STEP_SECONDS, Histogram
from engine.plan import NO_ADAPTER, StepPlan
from engine.prefix import PrefixTree
from engine.sequence import Sequence
from engine.types import AdapterRef


class Measuring:
    """Counts of one core, since its start."""

    def __init__(self, arena: Arena, prefix: PrefixTree, cache: AdapterCache) -> None:
        self._arena = arena
        self._prefix = prefix
        self._cache = cache
        self._step_s = Histogram(STEP_SECONDS)
        self._adapters = Histogram(ADAPTERS)
        self._stall_s = Histogram(SECONDS)
        self._queue_s: dict[tuple[str, AdapterRef | None], list[float]] = {}

    def step(self, plan: StepPlan, seconds: float) -> None:
        """It has come back, after so long on the device."""
        adapters = {span[4] for span in plan.spans}
        self._adapters.add(len(adapters) - (NO_ADAPTER in adapters))
        self._step_s.add(seconds)

    def admitted(self, newcomers: Iterable[Sequence], now: float) -> None:
        """They have their rows, for the first time.

        Where its adapter has come since the last step, that is what one waited for: a stall. Others
        whose adapter was missing had to wait for room as well, so that the load cost them nothing.
        """
        come, queue_s = self._cache.counts.come, self._queue_s
        for sequence in newcomers:
            waited_s = now - sequence.arrival_s
            queue_s.setdefault((sequence.tenant, sequence.request.adapter), []).append(waited_s)
            if sequence.adapter_key in come:
                self._stall_s.add(waited_s)

    def take(self, accounts: Accounts) -> Measures:
        """As it stands; queue times since the last call."""
        queue_s, self._queue_s = self._queue_s, {}
        counts = self._cache.counts
        return Measures(
            step_s=self._step_s.read(),
            adapters=self._adapters.read(),
            stall_s=self._stall_s.read(),
            queue_s=tuple((*whose, tuple(seconds)) for whose, seconds in queue_s.items()),
            loads=tuple((*kind, num) for kind, num in counts.loads.items()),
            load_s=counts.load_s(),
            upload_s=counts.upload_s(),
            num_quarantined=counts.num_refused,
            num_evicted=counts.num_evicted,
            num_prefixes_evicted=self._cache.reclaim.num_prefixes,
            num_adapters=self._arena.num_adapters,
            adapter_pages=self._arena.adapter_pages,
            cached_pages=self._prefix.num_idle,
            sequence_pages=self._arena.num_kv_pages - self._prefix.num_idle,
            account_lag=accounts.spread(),
        )
