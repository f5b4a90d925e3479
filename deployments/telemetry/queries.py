"""Prometheus queries over the instruments. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.telemetry.instrument import PROCESS, Instrument, Kind

RANGE = "$__rate_interval"
"""Grafana's: long enough for the scrape interval and the panel's resolution."""


@dataclass(frozen=True, slots=True)
class Queries:
    """prefix: what stands before the names (`ray_endpoint.RAY_PREFIX`; nothing behind a collector).
    range: over which rates are taken.

    by: labels that stay, comma-separated; "": none. where: label matchers, as in Prometheus.
    """

    prefix: str
    range: str = RANGE

    def name(self, instrument: Instrument) -> str:
        """A counter's or gauge's."""
        assert instrument.kind is not Kind.HISTOGRAM, f"{instrument.name} is a histogram"
        return self.prefix + instrument.prometheus

    def part(self, histogram: Instrument, part: str) -> str:
        """part: bucket, sum or count."""
        assert histogram.kind is Kind.HISTOGRAM, f"{histogram.name} is no histogram"
        return f"{self.prefix}{histogram.prometheus}_{part}"

    def rate(self, counter: Instrument, by: str = "", where: str = "") -> str:
        """A second, summed over what doesn't stay."""
        _check(counter, by)
        return self._sum(by, f"rate({self.name(counter)}{_braces(where)}[{self.range}])")

    def now(self, gauge: Instrument, by: str = "", where: str = "", how: str = "sum") -> str:
        """how: sum, max, min or avg."""
        _check(gauge, by)
        return self._sum(by, self.name(gauge) + _braces(where), how)

    def share(self, counter: Instrument, where: str, among: str = "") -> str:
        """Of all (those that are `among`), those for which `where` holds; 0 where nothing was
        counted."""
        part, whole = self.rate(counter, where=where), self.rate(counter, where=among)
        return f"({part} or vector(0)) / ({whole} > 0) or vector(0)"

    def quantile(self, q: float, histogram: Instrument, by: str = "", where: str = "") -> str:
        _check(histogram, by)
        bucket = self.part(histogram, "bucket")
        labels = f"le, {by}" if by else "le"
        rates = f"sum by ({labels}) (rate({bucket}{_braces(where)}[{self.range}]))"
        return f"histogram_quantile({q:g}, {rates})"

    def mean(self, histogram: Instrument) -> str:
        total, num = (
            f"sum(rate({self.part(histogram, part)}[{self.range}]))" for part in ("sum", "count")
        )
        return f"{total} / {num}"

    def _sum(self, by: str, what: str, how: str = "sum") -> str:
        return f"{how} by ({by}) ({what})" if by else f"{how}({what})"


def seldom(query: str) -> str:
    """Of what may never have happened: then 0, so that a panel shows that rather than nothing."""
    return f"{query} or vector(0)"


def _check(instrument: Instrument, by: str) -> None:
    """Labels that the instrument doesn't have would silently give nothing."""
    known = {*instrument.labels, PROCESS, ""}
    assert set(by.split(", ")) <= known, f"{instrument.name} has no label of {by!r}"


def _braces(where: str) -> str:
    return f"{{{where}}}" if where else ""
