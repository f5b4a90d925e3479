"""A report's plots, one function each: a report in, an SVG out, "" where there is nothing to show.

Up to MANY tenants each has its name; of more, the spread is drawn and the extremes are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from loadgen.client.outcome import Outcome
from loadgen.client.run import Run
from loadgen.report.figure import (
    COLOURS,
    FAINT,
    INK,
    axes,
    legend,
    log_seconds,
    svg,
)
from loadgen.report.groups import Group, deciles
from loadgen.report.stats import Quantiles, cdf
from loadgen.report.summary import Report
from loadgen.report.timeline import Floats
from loadgen.report.words import seconds

MANY = 12
LEVELS = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Plot:
    """name: of its file; title and note say what it shows."""

    name: str
    title: str
    note: str
    svg: str


Measure = Callable[[Outcome], Sequence[float]]


def first_of(outcome: Outcome) -> Sequence[float]:
    return () if outcome.first_s is None else (outcome.first_s,)


def gaps_of(outcome: Outcome) -> Sequence[float]:
    return outcome.gaps_s


def distribution(series: Mapping[str, Sequence[Outcome]], measure: Measure, label: str) -> str:
    """Cumulative, of each named set of requests."""
    with axes() as (figure, (ax,)):
        drawn: list[float] = []
        for (name, outcomes), colour in zip(series.items(), COLOURS, strict=False):
            values = [v for o in outcomes for v in measure(o)]
            if values:
                known, parts = cdf(values)
                ax.step(known, parts, where="post", color=colour, label=f"{name} ({len(values):,})")
                # The few smallest would make the axis long and the rest of the curve short.
                drawn += [v for v, part in zip(known, parts, strict=True) if part > 0.05]
        if not drawn:
            return ""
        log_seconds(ax.xaxis, drawn)
        ax.set_ylim(0, 1.02)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_xlabel(label)
        ax.set_ylabel("share at most as long")
        legend(ax, columns=3)
        return svg(figure)


def tenants(groups: Sequence[Group], measure: str, label: str) -> str:
    """Quantiles of each tenant: by name if they are few, else in order of their p99."""
    known = [(g, q) for g in groups if (q := _quantiles(g, measure)) is not None]
    if not known:
        return ""
    known.sort(key=lambda pair: pair[1].p99)
    few = len(known) <= MANY
    with axes(height=1.2 + 0.26 * len(known) if few else 3.6) as (figure, (ax,)):
        drawn: list[float] = []
        places = np.arange(len(known))
        if few:
            ax.hlines(places, [q.p50 for _, q in known], [q.p99 for _, q in known], color=FAINT)
        for level, colour, marker in zip(LEVELS, COLOURS, "osD", strict=False):
            values = [float(getattr(q, level)) for _, q in known]
            drawn += values
            if few:
                ax.plot(values, places, marker, color=colour, label=level, markersize=6)
            else:
                ax.plot(places + 1, values, ".", color=colour, label=level, markersize=3.5)
        if few:
            log_seconds(ax.xaxis, drawn)
            ax.set_xlabel(label)
            ax.set_yticks(places, [g.name for g, _ in known])
            ax.set_ylim(-0.6, len(known) - 0.4)
        else:
            log_seconds(ax.yaxis, drawn)
            ax.set_ylabel(label)
            ax.set_xlabel(f"{len(known)} tenants, in order of their p99")
            worst = ", ".join(f"{g.name} {seconds(q.p99)}" for g, q in reversed(known[-3:]))
            ax.set_title(f"largest p99: {worst}", loc="right", fontsize=8.5, color=INK)
        legend(ax, columns=3, markers=1.0 if few else 2.5)
        return svg(figure)


def popularity(groups: Sequence[Group], measure: str, label: str) -> str:
    """Quantiles of each tenth of the adapters."""
    known = [(g, q) for g in groups if (q := _quantiles(g, measure)) is not None]
    if len(groups) < 2 or not known:
        return ""
    with axes() as (figure, (ax,)):
        places = [groups.index(g) for g, _ in known]
        drawn: list[float] = []
        for level, colour, marker in zip(LEVELS, COLOURS, "osD", strict=False):
            values = [float(getattr(q, level)) for _, q in known]
            drawn += values
            ax.plot(places, values, marker=marker, color=colour, label=level, linewidth=1)
        log_seconds(ax.yaxis, drawn)
        names = [f"{g.name}\n{g.num_adapters} ad.\n{g.requests} req." for g in groups]
        ax.set_xticks(range(len(groups)), names, fontsize=8)
        ax.set_xlabel("adapters (ad.) by popularity, the most popular left, and their requests")
        ax.set_ylabel(label)
        legend(ax, columns=3)
        return svg(figure)


def fairness(report: Report) -> str:
    """Service of each tenant over time; below, Jain's index of those that contend."""
    line = report.timeline
    rate = line.service / line.window_s
    with axes(height=5.2, rows=2) as (figure, (ax, below)):
        middles = line.starts_s + line.window_s / 2
        if len(line.tenants) <= len(COLOURS):
            for tenant, row, colour in zip(line.tenants, rate, COLOURS, strict=False):
                ax.plot(middles, row, color=colour, label=tenant)
        else:
            low, middle, high = np.quantile(rate, (0.1, 0.5, 0.9), axis=0)
            ax.fill_between(middles, low, high, color=FAINT, alpha=0.5, linewidth=0)
            ax.plot(middles, middle, color=INK, label=f"median of {len(line.tenants)}, p10 to p90")
            for row, colour in zip(np.argsort(-rate.sum(axis=1))[:3], COLOURS, strict=False):
                ax.plot(middles, rate[row], color=colour, linewidth=1.1, label=line.tenants[row])
        ax.set_ylabel("service, tokens/s")
        ax.set_ylim(bottom=0)
        legend(ax, columns=4)
        below.plot(middles, line.jain, color=COLOURS[0], marker=".", markersize=4)
        below.set_ylim(0, 1.05)
        below.set_ylabel("Jain index")
        if np.isnan(line.jain).all():
            below.text(
                0.5,
                0.5,
                "never two tenants with work all through a window",
                ha="center",
                transform=below.transAxes,
                color=INK,
            )
        over_time(below, report)
        _mark(ax, report)
        return svg(figure)


def traffic(report: Report) -> str:
    """Requests due, good and failed; below, those under way and the adapters among them."""
    line = report.timeline
    with axes(height=5.2, rows=2) as (figure, (ax, below)):
        # The last window is as wide as the others.
        edges, per_s = np.append(line.starts_s, len(line.due) * line.window_s), 1 / line.window_s
        due = _to_the_end(line.due * per_s)
        ax.fill_between(edges, due, step="post", color=FAINT, alpha=0.6, label="due")
        for name, values, colour in (
            ("of those within the SLO", line.good, COLOURS[2]),
            ("of those not answered", line.failed, COLOURS[1]),
        ):
            ax.step(edges, _to_the_end(values * per_s), where="post", color=colour, label=name)
        ax.set_ylabel("requests/s")
        ax.set_ylim(bottom=0)
        legend(ax, columns=3)
        middles = line.starts_s + line.window_s / 2
        below.plot(middles, line.running, color=COLOURS[0], label="requests due and unanswered")
        below.plot(middles, line.adapters, color=COLOURS[1], label="adapters being answered")
        below.set_ylabel("at once")
        below.set_ylim(bottom=0)
        legend(below, columns=2)
        over_time(below, report)
        _mark(ax, report)
        return svg(figure)


def residency(report: Report) -> str:
    """Adapters on devices and in host memory, as the service says."""
    if report.server is None or not report.server.resident:
        return ""
    at_s, device, host = zip(*report.server.resident, strict=True)
    with axes() as (figure, (ax,)):
        ax.step(at_s, device, where="post", color=COLOURS[0], label="on a device")
        ax.step(at_s, host, where="post", color=COLOURS[1], label="in host memory")
        ax.set_ylabel("adapters, over all replicas")
        ax.set_ylim(0, 1.15 * max(1, *device, *host))  # with room for the names of faults
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        legend(ax, columns=2)
        over_time(ax, report)
        return svg(figure)


def over_time(ax: Axes, report: Report) -> None:
    """The x axis of a plot over time, with the faults on it."""
    ax.set_xlabel("seconds from the start")
    ax.set_xlim(0, max(report.facts.wall_s, report.timeline.window_s))
    _mark(ax, report, named=True)


def _to_the_end(values: Floats) -> Floats:
    """Values of windows, as those of the edges between them."""
    return np.append(values, values[-1:])


def _mark(ax: Axes, report: Report, named: bool = False) -> None:
    for number, fault in enumerate(report.facts.faults, start=1):
        ax.axvline(fault.at_s, color=COLOURS[1], linestyle="--", linewidth=1)
        if named:
            ax.annotate(
                f"fault {number}",
                (fault.at_s, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9),
                textcoords="offset points",
                fontsize=8,
                color=COLOURS[1],
            )


def _quantiles(group: Group, measure: str) -> Quantiles | None:
    found: Quantiles | None = getattr(group, measure)
    return found


def all_plots(run: Run, report: Report) -> list[Plot]:
    """In the order of the page, where two of one height stand beside each other; those with nothing
    to show are left out."""
    parts = deciles(run.outcomes)
    series: dict[str, Sequence[Outcome]] = {"all": run.outcomes}
    if len(parts) > 1:
        series |= {"most popular adapters": parts[0], "least popular adapters": parts[-1]}
    first, gap = "time to first token", "gap between pieces of text"
    plots = [
        Plot("traffic", "Traffic", "What was due, what of it went well, and what was under way.",
             traffic(report)),
        Plot("fairness", "Fairness over time",
             "Service is prompt tokens + 2 × answer tokens, over the tenant's weight. Jain's index"
             " is 1 where tenants that have work all the time are served alike.",
             fairness(report)),
        Plot("first-cdf", "Time to first token", "From when a request was due.",
             distribution(series, first_of, first)),
        Plot("gap-cdf", "Gaps between tokens", "Between pieces of text as the client got them.",
             distribution(series, gaps_of, gap)),
        Plot("first-tenants", "Time to first token by tenant", "",
             tenants(report.tenants, "first", first)),
        Plot("gap-tenants", "Gaps between tokens by tenant", "",
             tenants(report.tenants, "gap", gap)),
        Plot("first-popularity", "Time to first token by popularity",
             "Adapters by how often they are asked for, in tenths.",
             popularity(report.deciles, "first", first)),
        Plot("gap-popularity", "Gaps between tokens by popularity", "",
             popularity(report.deciles, "gap", gap)),
        Plot("residency", "Resident adapters", "", residency(report)),
    ]  # fmt: skip
    return [plot for plot in plots if plot.svg]
