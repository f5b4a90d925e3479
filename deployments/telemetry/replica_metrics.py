"""A replica's metrics, from what its core hands over once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from deployments.platform.serve_process import serve_instance
from deployments.telemetry import instruments as i
from deployments.telemetry.instrument import Where
from deployments.telemetry.metering import Metering, adapter_name, metering
from deployments.telemetry.section import TelemetrySection
from engine.adapters.residency import ResidencyTable
from engine.core_stats import CoreStats, Measures
from engine.messages import Output, Ready
from engine.usage import TenantUsage


class Restarts(Protocol):
    @property
    def num_restarts(self) -> int:
        """Of the loader, so far."""


class NoMetrics:
    """Where metrics are off."""

    def start(self, ready: Ready) -> None:
        pass

    def heard(self, output: Output) -> None:
        pass

    def close(self) -> None:
        pass


class ReplicaMetrics(NoMetrics):
    """residency: of this replica's adapters. wall: Unix seconds."""

    def __init__(
        self,
        metering: Metering,
        residency: ResidencyTable,
        restarts: Restarts,
        wall: Callable[[], float],
    ) -> None:
        self._metering = metering
        self._tally = metering.tally
        self._residency = residency
        self._restarts = restarts
        self._wall = wall
        self._page_bytes = 0
        self._used: dict[str, TenantUsage] = {}
        self._running: asyncio.Task[None] | None = None
        metering.readers.append(self._read)

    def start(self, ready: Ready) -> None:
        """The core can serve; from now on it is told of. On the event loop."""
        self._page_bytes = ready.page_bytes
        self._tally.set(i.CORE_STARTED, self._wall())
        for tier in ("device", "host", "cold"):
            self._tally.add(i.ARRIVALS, 0, tier)
        self._running = asyncio.create_task(self._metering.run())

    def close(self) -> None:
        """From any thread; idempotent."""
        running, self._running = self._running, None
        if running is not None:
            with suppress(RuntimeError):  # a loop that has closed runs nothing any more
                running.get_loop().call_soon_threadsafe(running.cancel)
            self._metering.close()

    def heard(self, output: Output) -> None:
        """An output of the core; nothing happens for one without statistics."""
        if output.stats is not None:
            self._stats(output.stats)
            if output.measures is not None:
                self._measures(output.measures, output.stats)

    def _read(self) -> None:
        self._tally.set(i.LOADER_RESTARTS, self._restarts.num_restarts)
        places = self._residency.lists()
        for place, keys in places.items():
            self._tally.set(i.RESIDENTS, len(keys), place)

    def _stats(self, stats: CoreStats) -> None:
        put = self._tally.set
        put(i.STEPS, stats.num_replayed, "true")
        put(i.STEPS, stats.num_steps - stats.num_replayed, "false")
        put(i.STEP_BUSY, stats.busy_s)
        put(i.STEP_BASE, stats.base_s)
        put(i.CORE_TOKENS, stats.prompt_tokens, "prompt")
        put(i.CORE_TOKENS, stats.cached_tokens, "cached")
        put(i.CORE_TOKENS, stats.output_tokens, "output")
        put(i.PREEMPTIONS, stats.num_preemptions)
        put(i.MOVES, stats.num_moves)
        put(i.ROUNDING, stats.rounding_bytes)
        put(i.QUEUE_WAIT, stats.queue_s)
        put(i.QUEUE_REQUESTS, stats.num_running, "running")
        put(i.QUEUE_REQUESTS, stats.num_warming, "warming")
        put(i.QUEUE_REQUESTS, stats.num_waiting - stats.num_warming, "ready")
        for tier, num in stats.arrivals:
            put(i.ARRIVALS, num, tier)
        for used in stats.usage:
            self._usage(used)

    def _usage(self, now: TenantUsage) -> None:
        """What is new counts under the label that the tenant has now."""
        before = self._used.get(now.tenant, TenantUsage(now.tenant))
        self._used[now.tenant] = now
        label, add = self._metering.tenants.label(now.tenant), self._tally.add
        add(i.TENANT_DEVICE, now.device_s - before.device_s, label)
        add(i.TENANT_LOADED, now.loaded_bytes - before.loaded_bytes, label)
        add(i.TENANT_RESIDENT, now.host_byte_s - before.host_byte_s, label, "host")
        add(i.TENANT_RESIDENT, now.device_byte_s - before.device_byte_s, label, "device")

    def _measures(self, told: Measures, stats: CoreStats) -> None:
        put, put_counts = self._tally.set, self._tally.set_counts
        put_counts(i.STEP_DURATION, told.step_s)
        put_counts(i.STEP_ADAPTERS, told.adapters)
        put_counts(i.STALLS, told.stall_s)
        put_counts(i.UPLOAD_DURATION, told.upload_s)
        for source, seconds in told.load_s:
            put_counts(i.LOAD_DURATION, seconds, source)
        for source, cause, outcome, num in told.loads:
            put(i.LOADS, num, source, cause, outcome)
        put(i.QUARANTINES, told.num_quarantined)
        put(i.EVICTIONS, told.num_evicted, "adapter")
        put(i.EVICTIONS, told.num_prefixes_evicted, "prefix")
        put(i.ACCOUNT_LAG, told.account_lag)
        put(i.ARENA_ADAPTERS, told.num_adapters)
        pages = {
            "sequences": told.sequence_pages,
            "prefixes": told.cached_pages,
            "adapters": told.adapter_pages,
            "free": stats.free_pages,
        }
        for use, num_pages in pages.items():
            put(i.ARENA, num_pages * self._page_bytes, use)
        self._queue_times(told)

    def _queue_times(self, told: Measures) -> None:
        tenants, adapters = self._metering.tenants, self._metering.adapters
        for tenant, ref, seconds in told.queue_s:
            name = adapter_name(ref)
            for waited_s in seconds:
                self._tally.observe(i.TENANT_QUEUE, waited_s, tenants.see(tenant))
                self._tally.observe(i.ADAPTER_QUEUE, waited_s, adapters.see(name))


def replica_metrics(
    section: TelemetrySection, residency: ResidencyTable, restarts: Restarts
) -> NoMetrics:
    """Those of the replica in this process."""
    meter = metering(section, Where.REPLICA, serve_instance)
    if meter is None:
        return NoMetrics()
    return ReplicaMetrics(meter, residency, restarts, time.time)
