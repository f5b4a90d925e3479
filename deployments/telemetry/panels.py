"""A dashboard as data: panels with queries."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.telemetry.instrument import Instrument
from deployments.telemetry.queries import Queries

FAILED = 'outcome!="ok"'
FAILED_STATUS = 'status=~"5.."'
OF_TENANTS = 'status!="401"'
"""However many come without a key, they don't make the share of failures look small."""


@dataclass(frozen=True, slots=True)
class Panel:
    """unit: Grafana's id. lines: (legend, query). help: how to read it, and what to do."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    help: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """choices: (variable, instrument whose label of that name it offers)."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    choices: tuple[tuple[str, Instrument], ...] = ()


def quantiles(q: Queries, title: str, histogram: Instrument, at: tuple[float, ...]) -> Panel:
    lines = tuple((f"p{x:.0%}"[:-1], q.quantile(x, histogram)) for x in at)
    return Panel(title, "s", lines, histogram.help)
