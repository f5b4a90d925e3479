"""A process's metrics: its tally, who has labels of their own, and the exports.

One in each ingress, replica and control process that is to be measured, and none (None) where
metrics are off: then nothing is counted at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.sdk.version import __version__ as SDK_VERSION

from deployments.telemetry.instrument import BASE, PROCESS, Where
from deployments.telemetry.ranking import Ranking
from deployments.telemetry.section import TelemetrySection
from deployments.telemetry.tally import Tally
from engine.types import AdapterRef

log = logging.getLogger("loraplex.telemetry")

EXPORT_TIMEOUT_S = 10.0
LABELS_EVER = 10
"""Times `top`: how many names get a label in a process that Ray reports, which forgets none."""
SCOPE = InstrumentationScope("loraplex")


class Metering:
    """readers: called before every export, to bring in what is counted elsewhere.

    resource   what says of this process which it is
    exporters  each has its own thread, so that a slow one holds up no other
    """

    def __init__(
        self,
        section: TelemetrySection,
        resource: Resource,
        exporters: Sequence[MetricExporter],
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._section = section
        self._resource = resource
        self._exporters = tuple(exporters)
        self._clock = clock
        self._ranked_s = clock()
        self._threads = ThreadPoolExecutor(max(1, len(exporters)), thread_name_prefix="metrics")
        ever = LABELS_EVER if section.ray else None
        self.tally = Tally(now_ns)
        self.tenants = Ranking(section.top_tenants, ever and ever * section.top_tenants)
        self.adapters = Ranking(section.top_adapters, ever and ever * section.top_adapters)
        self.readers: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Export for ever."""
        await asyncio.gather(*(self._run(exporter) for exporter in self._exporters))

    def read(self) -> MetricsData:
        """Everything as it stands."""
        for bring in self.readers:
            try:
                bring()
            except Exception:
                log.exception("what is counted elsewhere can't be brought in")
        self._rank()
        scope = ScopeMetrics(SCOPE, self.tally.read(), "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    async def export(self) -> None:
        """Once, now, to all."""
        await asyncio.gather(*(self._export(exporter) for exporter in self._exporters))

    def close(self) -> None:
        """Ends what `run` was doing; that must have been cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for exporter in self._exporters:
            exporter.shutdown()

    async def _run(self, exporter: MetricExporter) -> None:
        while True:
            await asyncio.sleep(self._section.export_s)
            await self._export(exporter)

    async def _export(self, exporter: MetricExporter) -> None:
        """What fails is logged; the next export says it all again."""
        data, loop = self.read(), asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(
                self._threads, exporter.export, data, EXPORT_TIMEOUT_S * 1e3
            )
        except Exception:
            log.exception("metrics can't be exported")
            return
        if result is not MetricExportResult.SUCCESS:
            log.warning("metrics could not be exported by %s", type(exporter).__name__)

    def _rank(self) -> None:
        now = self._clock()
        if now - self._ranked_s >= self._section.rank_s:
            self._ranked_s = now
            self.tally.forget("tenant", self.tenants.rank())
            self.tally.forget("adapter", self.adapters.rank())


def adapter_name(ref: AdapterRef | None) -> str:
    """What an adapter's version is called in labels."""
    return BASE if ref is None else f"{ref.ring_key}@{ref.digest[:12]}"


def metering(
    section: TelemetrySection, where: Where, instance: Callable[[], str]
) -> Metering | None:
    """For a process of a deployment, `instance` its name; None where metrics are off or go
    nowhere."""
    if not section.metrics:
        return None
    name = instance()
    exporters = list(_exporters(section, {PROCESS: name}))
    if not exporters:
        return None
    return Metering(section, process_resource(where, name, section.resource_attributes), exporters)


def process_resource(where: Where, instance: str, said: Mapping[str, str]) -> Resource:
    """Which process it is. said: what the configuration says of it, which counts for more. Nothing
    is read from the environment (`Resource.create` would)."""
    ours = {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": SDK_VERSION,
        "service.name": f"loraplex-{where}",
        "service.namespace": "loraplex",
        "service.instance.id": instance,
    }
    return Resource({**ours, **said})


def _exporters(section: TelemetrySection, tags: Mapping[str, str]) -> Iterable[MetricExporter]:
    """Imported where they are used: an exporter that isn't wanted costs no memory either."""
    if section.ray:
        import ray  # noqa: PLC0415

        from deployments.telemetry.ray_endpoint import RayExporter  # noqa: PLC0415

        if ray.is_initialized():
            yield RayExporter(tags)
    if section.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter,
        )

        yield OTLPMetricExporter(
            endpoint=f"{section.otlp_endpoint.rstrip('/')}/v1/metrics",
            headers=dict(section.otlp_headers),
            timeout=EXPORT_TIMEOUT_S,
        )
