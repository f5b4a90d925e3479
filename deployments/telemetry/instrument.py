"""One metric: its name, unit, kind, labels, meaning and bucket bounds.

Names and units are OpenTelemetry's; what Prometheus calls them follows from those.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.histogram import ADAPTERS, SECONDS

PROCESS = "process"
"""A label of every series: what Ray Serve calls the process (`instance` is Prometheus's own)."""
OTHER = "other"
BASE = "base"

_SUFFIXES = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Where(StrEnum):
    """The process that reports it."""

    INGRESS = "ingress"
    REPLICA = "replica"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Instrument:
    """bounds: of a histogram's buckets, ascending, in its unit."""

    where: Where
    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, as OpenTelemetry derives it; a histogram's without `_bucket`."""
        name = self.name.replace(".", "_") + _SUFFIXES.get(self.unit, "")
        return f"{name}_total" if self.kind is Kind.COUNTER else name


def counter(where: Where, name: str, unit: str, help_: str, *labels: str) -> Instrument:
    return Instrument(where, f"loraplex.{name}", Kind.COUNTER, unit, help_, labels)


def gauge(where: Where, name: str, unit: str, help_: str, *labels: str) -> Instrument:
    return Instrument(where, f"loraplex.{name}", Kind.GAUGE, unit, help_, labels)


def histogram(
    where: Where, name: str, help_: str, *labels: str, bounds: tuple[float, ...] = SECONDS
) -> Instrument:
    unit = "{adapter}" if bounds is ADAPTERS else "s"
    return Instrument(where, f"loraplex.{name}", Kind.HISTOGRAM, unit, help_, labels, bounds)
