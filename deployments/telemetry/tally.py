"""What a process has counted: the series of every instrument, in OpenTelemetry's data model.

OpenTelemetry's own aggregation keeps every set of labels that it has seen for ever, and can't be
given what is counted already, as the core counts its steps. So this keeps the counts, and the
exporters of OpenTelemetry take them from here. One thread, the event loop's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData

from deployments.telemetry.instrument import Instrument, Kind
from deployments.telemetry.instruments import ALL
from engine.histogram import Counts

CUMULATIVE = AggregationTemporality.CUMULATIVE
Labels = tuple[str, ...]


@dataclass(slots=True)
class Series:
    """One set of labels. total: a counter's or gauge's value, a histogram's sum. counts: of its
    buckets. since_ns: when it began."""

    since_ns: int
    total: float = 0.0
    counts: list[int] | None = None


class Tally:
    """now_ns: Unix time in nanoseconds. Label values: in the order of the instrument's labels."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._series: dict[Instrument, dict[Labels, Series]] = {}

    def add(self, counter: Instrument, amount: float, *labels: str) -> None:
        """Counts up. amount: 0 or more; with 0 the series is there, so that its growth shows."""
        self._of(counter, labels).total += amount

    def set(self, instrument: Instrument, value: float, *labels: str) -> None:
        """A gauge's value, or the total of a counter that somebody else counts."""
        self._of(instrument, labels).total = value

    def observe(self, histogram: Instrument, value: float, *labels: str) -> None:
        """One more value, in the instrument's unit."""
        series = self._of(histogram, labels)
        assert series.counts is not None, f"{histogram.name} is no histogram"
        series.counts[bisect_left(histogram.bounds, value)] += 1
        series.total += value

    def set_counts(self, histogram: Instrument, counts: Counts, *labels: str) -> None:
        """All values so far, of a histogram with these very bounds that somebody else fills."""
        series = self._of(histogram, labels)
        assert series.counts is not None and len(series.counts) == len(counts.counts)
        series.counts[:] = counts.counts
        series.total = counts.total

    def forget(self, label: str, values: Iterable[str]) -> None:
        """Every series with one of these values of the label."""
        gone = frozenset(values)
        for instrument, series in self._series.items():
            if gone and label in instrument.labels:
                at = instrument.labels.index(label)
                for labels in [labels for labels in series if labels[at] in gone]:
                    del series[labels]

    def value(self, instrument: Instrument, *labels: str) -> float:
        """As it stands; 0 where nothing was counted. A histogram's: how many values."""
        series = self._series.get(instrument, {}).get(labels)
        if series is None:
            return 0.0
        return series.total if series.counts is None else float(sum(series.counts))

    def read(self) -> list[Metric]:
        """A copy of everything, for an exporter."""
        now_ns = self._now_ns()
        return [
            Metric(i.name, i.help, i.unit, _data(i, self._series[i], now_ns))
            for i in ALL
            if self._series.get(i)
        ]

    def _of(self, instrument: Instrument, labels: Labels) -> Series:
        known = self._series.setdefault(instrument, {})
        series = known.get(labels)
        if series is None:
            assert len(labels) == len(instrument.labels), f"{instrument.name} has other labels"
            series = known[labels] = Series(self._now_ns())
            if instrument.kind is Kind.HISTOGRAM:
                series.counts = [0] * (len(instrument.bounds) + 1)
        return series


def _data(
    instrument: Instrument, known: dict[Labels, Series], now_ns: int
) -> Sum | Gauge | HistogramData:
    if instrument.kind is Kind.HISTOGRAM:
        return HistogramData(
            [_histogram_point(instrument, labels, s, now_ns) for labels, s in known.items()],
            CUMULATIVE,
        )
    points = [
        NumberDataPoint(_attributes(instrument, labels), s.since_ns, now_ns, s.total)
        for labels, s in known.items()
    ]
    return Gauge(points) if instrument.kind is Kind.GAUGE else Sum(points, CUMULATIVE, True)


def _histogram_point(
    instrument: Instrument, labels: Labels, series: Series, now_ns: int
) -> HistogramDataPoint:
    """Least and greatest are not kept: None, which is what the protocol has for that."""
    counts = series.counts or []
    unknown: float = None  # type: ignore[assignment]
    return HistogramDataPoint(
        _attributes(instrument, labels),
        series.since_ns,
        now_ns,
        sum(counts),
        series.total,
        list(counts),
        instrument.bounds,
        unknown,
        unknown,
    )


def _attributes(instrument: Instrument, labels: Labels) -> dict[str, str]:
    return dict(zip(instrument.labels, labels, strict=True))
