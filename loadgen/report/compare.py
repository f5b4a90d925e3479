"""Two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from loadgen.client.run import Run
from loadgen.report.markdown import rows_of
from loadgen.report.page import document, figure, pair, table_of
from loadgen.report.plots import Measure, Plot, distribution, first_of, gaps_of
from loadgen.report.slo import Slo
from loadgen.report.summary import Report, summarise
from loadgen.report.tables import SHOWN, Table
from loadgen.report.tables import warnings as run_warnings
from loadgen.report.words import NONE, number, part, seconds

NAMES = ("A", "B")
MANY_TIMES = 5.0
"""From here on a change is told as a factor."""


def write_comparison(first: Path, second: Path, out: Path, slo: Slo | None = None) -> None:
    """compare.html, compare.md and compare.json. Raises RunError."""
    runs = (Run.read(first), Run.read(second))
    reports = tuple(summarise(run, slo or Slo()) for run in runs)
    titles = [
        f"{name}: {folder}: {r.facts.scenario}, seed {r.facts.seed}, {r.facts.began}"
        for name, folder, r in zip(NAMES, (first, second), reports, strict=True)
    ]
    warnings = differences(reports)
    for name, report in zip(NAMES, reports, strict=True):
        warnings += [f"{name}: {warning}" for warning in run_warnings(report)]
    shown = [numbers(reports), tenants(reports)]
    plots = [
        Plot("first", "Time to first token", "", _both(runs, first_of, "time to first token")),
        Plot("gap", "Gaps between tokens", "", _both(runs, gaps_of, "gap between pieces of text")),
    ]
    out.mkdir(parents=True, exist_ok=True)
    parts = [f'<p class="sub">{escape(t)}</p>' for t in titles]
    parts += [f'<p class="warning">{escape(w)}</p>' for w in warnings]
    parts.append(pair([figure(plot) for plot in plots if plot.svg]))
    parts += [table_of(table) for table in shown]
    (out / "compare.html").write_text(document("Two runs side by side", parts), encoding="utf-8")
    text = ["# Two runs side by side", "\n".join(f"* {t}" for t in titles)]
    text += [f"> {w}" for w in warnings]
    text += [f"## {t.title}\n\n{rows_of(t)}" for t in shown if t.rows]
    (out / "compare.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    values = {name: report.to_json() for name, report in zip(NAMES, reports, strict=True)}
    (out / "compare.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def differences(reports: Sequence[Report]) -> list[str]:
    """What makes the two hard to compare."""
    a, b = (report.facts for report in reports)
    if a.digest == b.digest:
        return []
    same = a.scenario == b.scenario and a.seed == b.seed
    return [
        "The two runs did not have the same requests: "
        + ("their parameters differ." if same else f"{a.scenario}, seed {a.seed}, and {b.scenario},"
           f" seed {b.seed}.")
    ]  # fmt: skip


def numbers(reports: Sequence[Report]) -> Table:
    rows: list[Sequence[str]] = []
    for title, path, form in (
        ("requests due", "whole.requests", number),
        ("answered", "whole.ok", number),
        ("within the SLO", "whole.good", number),
        ("goodput, requests/s", "goodput", number),
        ("answer tokens/s", "tokens_per_s", number),
        ("first token p50", "whole.first.p50", seconds),
        ("first token p95", "whole.first.p95", seconds),
        ("first token p99", "whole.first.p99", seconds),
        ("gap p50", "whole.gap.p50", seconds),
        ("gap p95", "whole.gap.p95", seconds),
        ("gap p99", "whole.gap.p99", seconds),
        ("later token p50", "whole.token.p50", seconds),
        ("first request of an adapter p95", "cold.p95", seconds),
        ("least popular tenants p99", "unpopular.first.p99", seconds),
        ("Jain index, tenants with work", "timeline.jain_contended", number),
        ("Jain index, all tenants", "jain_service", number),
        ("adapters at once p50", "adapters.p50", number),
        ("sent late p99", "lag.p99", seconds),
    ):
        a, b = (_at(report, path) for report in reports)
        rows.append((title, form(a), form(b), _change(a, b)))
    for tier in ("device", "host", "disk", "cold"):
        a, b = (r.server.hit_rates.get(tier) if r.server else None for r in reports)
        if a is not None or b is not None:
            rows.append((f"adapter in tier {tier}", part(a), part(b), _change(a, b)))
    return Table("Numbers", ("", *NAMES, "B against A"), rows)


def tenants(reports: Sequence[Report]) -> Table:
    """Those of both, where p99 of the first token changed most come first."""
    a, b = ({g.name: g for g in report.tenants} for report in reports)
    rows = []
    for name in sorted(a.keys() & b.keys()):
        before, after = a[name].first, b[name].first
        if before is not None and after is not None:
            rows.append((name, before, after))
    rows.sort(key=lambda row: -max(row[1].p99 / row[2].p99, row[2].p99 / row[1].p99))
    return Table(
        "Tenants" if len(rows) <= SHOWN else f"Tenants: {SHOWN} that changed most of {len(rows)}",
        ("tenant", "first p50: A", "B", "p99: A", "B", "p99, B against A"),
        [
            (name, seconds(p.p50), seconds(q.p50), seconds(p.p99), seconds(q.p99),
             _change(p.p99, q.p99))
            for name, p, q in rows[:SHOWN]
        ],
    )  # fmt: skip


def _both(runs: Sequence[Run], measure: Measure, label: str) -> str:
    series = {name: run.outcomes for name, run in zip(NAMES, runs, strict=True)}
    return distribution(series, measure, label)


def _at(report: Report, path: str) -> float | None:
    value: object = report
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value if isinstance(value, int | float) else None


def _change(a: float | None, b: float | None) -> str:
    if not a or b is None:
        return NONE
    return f"× {b / a:.3g}" if b / a >= MANY_TIMES else f"{(b / a - 1) * 100:+.1f} %"
