"""What a core tells of itself about once a second, beside its answers. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.histogram import Counts
from engine.tenant_load import TenantLoad
from engine.types import AdapterRef
from engine.usage import TenantUsage

BY_TENANT = frozenset({"service", "usage", "tenants"})


@dataclass(frozen=True, slots=True)
class CoreStats:
    """Plain counters of the core, handed over about once a second. Totals since its start.

    num_waiting     requests without a row; num_warming of them wait for their adapter
    queue_s         how long those that wait have waited, on average
    held_pages      pages of running sequences; of the others some hold cached prefixes or adapters
    rounding_bytes  of adapters' pages, what holds nothing since runs are whole pages
    arrivals        requests by the tier in which their adapter was when they came: cold, host or
                    device
    service         weighted tokens served, by tenant, of those that have grown since the last
    tenants         those that have requests (`engine.tenant_load`)
    num_adapters    different adapters of the running sequences
    usage           of tenants that have used something since the last (`engine.usage`)
    num_replayed    steps whose pass was replayed from a graph
    busy_s, base_s  seconds of steps, and what they would cost without adapters by the passes
                    measured at the start: busy_s / base_s - 1 is the adapters' overhead. Both 0
                    on a device that has no such passes
    """

    num_steps: int
    num_running: int
    num_waiting: int
    num_warming: int
    queue_s: float
    free_pages: int
    num_pages: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    num_preemptions: int
    num_moves: int
    num_evictions: int
    num_loads: int
    step_p50_s: float
    step_p99_s: float
    service: tuple[tuple[str, float], ...] = ()
    usage: tuple[TenantUsage, ...] = ()
    tenants: tuple[TenantLoad, ...] = ()
    num_adapters: int = 0
    held_pages: int = 0
    rounding_bytes: int = 0
    num_replayed: int = 0
    busy_s: float = 0.0
    base_s: float = 0.0
    arrivals: tuple[tuple[str, int], ...] = ()

    def totals(self) -> dict[str, Any]:
        """Plain values of all but what is told by tenant."""
        return {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in BY_TENANT
        }


@dataclass(frozen=True, slots=True)
class Measures:
    """What `engine.measuring` has counted, handed over with the `CoreStats`. Totals since the start
    of the core, but for `queue_s`.

    step_s        seconds of steps on the device
    adapters      different adapters in each step
    stall_s       what requests waited for their adapter and nothing else
    queue_s       of each request that has got its first row since the last: (tenant, adapter,
                  seconds from their arrival on)
    loads         (where from: disk or store; what for; ok or an error code; how many)
    load_s        by where from, seconds in the loader of those that succeeded
    upload_s      seconds of copies to the device
    num_evicted   adapters that have left the device; num_prefixes_evicted: cached pages
    num_adapters  that have a place in the arena, of `adapter_pages`; `sequence_pages` hold KV of
                  running sequences, `cached_pages` that of none
    account_lag   of tenants with requests waiting, the largest account less the least
    """

    step_s: Counts
    adapters: Counts
    stall_s: Counts
    queue_s: tuple[tuple[str, AdapterRef | None, tuple[float, ...]], ...]
    loads: tuple[tuple[str, str, str, int], ...]
    load_s: tuple[tuple[str, Counts], ...]
    upload_s: Counts
    num_quarantined: int
    num_evicted: int
    num_prefixes_evicted: int
    num_adapters: int
    adapter_pages: int
    cached_pages: int
    sequence_pages: int
    account_lag: float
