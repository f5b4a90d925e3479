"""What an instrument has counted, as an exporter would be told."""

from __future__ import annotations

from deployments.telemetry.instrument import Instrument, Kind
from deployments.telemetry.metering import Metering

Value = float | tuple[int, float]


def told(meter: Metering, instrument: Instrument) -> dict[tuple[str, ...], Value]:
    """{labels: value}, a histogram's as (count, sum)."""
    found: dict[tuple[str, ...], Value] = {}
    for metric in meter.read().resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == instrument.name:
            for point in metric.data.data_points:
                labels = tuple(str(point.attributes[label]) for label in instrument.labels)
                is_histogram = instrument.kind is Kind.HISTOGRAM
                found[labels] = (point.count, point.sum) if is_histogram else point.value
    return found
