"""An exporter to Ray's Prometheus endpoint of each node.

Ray's own counters and histograms don't carry ours: its histograms take one value at a time and
Prometheus sees sums guessed from the buckets' middles, and what its counters have counted stays at
the endpoint for as long as the node lives, process after process. A Ray gauge is exact and goes
when its process does. So every series is a gauge there that holds the running total, a histogram's
parts each their own (`_bucket` with `le`, `_sum`, `_count`): `rate` and `histogram_quantile` work
on them as on any others, and only the TYPE line is different.

Within one process Ray never forgets a series. What may be forgotten here stays there at its last
value: `Ranking.max_ever` bounds how many that can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
)
from ray.util.metrics import Gauge

from deployments.telemetry.instrument import Instrument
from deployments.telemetry.instruments import ALL

RAY_PREFIX = "ray_"
"""What Ray puts before every name."""


class RayExporter(MetricExporter):
    """tags: labels that every series gets."""

    def __init__(self, tags: Mapping[str, str]) -> None:
        super().__init__()
        self._tags = dict(tags)
        self._gauges: dict[str, Gauge] = {}
        self._instruments = {instrument.name: instrument for instrument in ALL}

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        for resource in metrics_data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._export(metric)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Ray sends by itself."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Ray keeps nothing open for us."""

    def _export(self, metric: Metric) -> None:
        instrument = self._instruments[metric.name]
        name = instrument.prometheus
        for point in metric.data.data_points:
            labels = {str(key): str(value) for key, value in (point.attributes or {}).items()}
            if isinstance(point, HistogramDataPoint):
                for part, value, tags in histogram_parts(point):
                    self._set(f"{name}_{part}", instrument, value, {**labels, **tags})
            else:
                assert isinstance(point, NumberDataPoint)
                self._set(name, instrument, point.value, labels)

    def _set(
        self, name: str, instrument: Instrument, value: float, labels: Mapping[str, str]
    ) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            keys = (*self._tags, *labels)
            gauge = self._gauges[name] = Gauge(name, instrument.help, keys)
            gauge.set_default_tags(self._tags)
        gauge.set(value, dict(labels))


def histogram_parts(point: HistogramDataPoint) -> Iterable[tuple[str, float, dict[str, str]]]:
    """As Prometheus has them: (part of the name, value, labels beside the point's own)."""
    bounds = [*(f"{bound:g}" for bound in point.explicit_bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
        yield "bucket", count, {"le": bound}
    yield "sum", point.sum, {}
    yield "count", point.count, {}
