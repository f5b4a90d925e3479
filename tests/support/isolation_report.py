"""What `make isolation` found, as JSON, as text, and with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from loadgen.client.outcome import Outcome
from loadgen.report.figure import COLOURS, axes, legend, log_seconds, svg
from loadgen.report.markdown import rows_of
from loadgen.report.page import document, figure, pair, table_of
from loadgen.report.plots import Plot, distribution, first_of
from loadgen.report.slo import Slo
from loadgen.report.stats import Quantiles
from loadgen.report.tables import Table
from loadgen.report.words import number, of, seconds


@dataclass(frozen=True, slots=True)
class Seen:
    """A run. used: by tenant, what the service says that it used meanwhile; wall_s: how long."""

    outcomes: list[Outcome]
    used: Mapping[str, Mapping[str, float]]
    wall_s: float


W_P, W_Q = 1.0, 2.0


@dataclass(frozen=True, slots=True)
class TenantPart:
    """One tenant in one run. first: seconds to the first token of those that got one, from due;
    good: whole and within the objective. queue_s: mean time in the core's queue, by the service.
    work: weighted tokens a second that were computed for it, by the service."""

    run: str
    tenant: str
    requests: int
    answered: int
    good: int
    p50_s: float
    p95_s: float
    p99_s: float
    queue_s: float
    work: float

    @classmethod
    def of(
        cls,
        run: str,
        tenant: str,
        outcomes: Sequence[Outcome],
        members: Sequence[str],
        seen: Seen,
        slo: Slo,
    ) -> Self:
        used = [seen.used[member] for member in members]
        first = Quantiles.of(_first_s(o) for o in outcomes)
        assert first is not None, f"{tenant} asked for nothing"
        num = sum(u["num_requests"] for u in used)
        prompt = sum(u["prompt_tokens"] - u["cached_tokens"] for u in used)
        return cls(
            run,
            tenant,
            len(outcomes),
            sum(o.ok for o in outcomes),
            sum(slo.met(o) for o in outcomes),
            first.p50,
            first.p95,
            first.p99,
            sum(u["queue_s"] for u in used) / num if num else 0.0,
            (W_P * prompt + W_Q * sum(u["output_tokens"] for u in used)) / seen.wall_s,
        )


def _first_s(outcome: Outcome) -> float:
    """One that got no token has waited until it ended at least."""
    return outcome.end_s if outcome.first_s is None else outcome.first_s


@dataclass(frozen=True, slots=True)
class Report:
    """pooled: of each run, all quiet tenants together. Rates in quiet requests a second."""

    rate: float
    capacity: float
    max_step_s: float
    slo: Slo
    pooled: tuple[TenantPart, ...]
    tenants: tuple[TenantPart, ...]
    sweep: Sequence[Mapping[str, float]]
    first: Mapping[str, Sequence[Outcome]]

    @classmethod
    def of(
        cls,
        runs: Mapping[str, Seen],
        sweep: Sequence[Mapping[str, float]],
        noisy: str,
        slo: Slo,
        max_step_s: float,
        rate: float,
        capacity: float,
    ) -> Self:
        pooled, tenants, first = [], [], {}
        for run, seen in runs.items():
            first[run] = [o for o in seen.outcomes if o.tenant != noisy]
            names = sorted({o.tenant for o in seen.outcomes})
            quiet = [t for t in names if t != noisy]
            pooled.append(TenantPart.of(run, "quiet, all", first[run], quiet, seen, slo))
            for tenant in names:
                own = [o for o in seen.outcomes if o.tenant == tenant]
                tenants.append(TenantPart.of(run, tenant, own, [tenant], seen, slo))
        return cls(rate, capacity, max_step_s, slo, tuple(pooled), tuple(tenants), sweep, first)

    def part(self, run: str) -> TenantPart:
        return next(p for p in self.pooled if p.run == run)

    @property
    def bound_s(self) -> float:
        return 2 * self.part("alone").p95_s + self.max_step_s

    @property
    def holds(self) -> bool:
        """p95 beside the neighbour within twice alone and a step; under fcfs several times that of
        deficit."""
        fair, fcfs = self.part("deficit").p95_s, self.part("fcfs").p95_s
        return fair <= self.bound_s and fcfs >= 3 * fair

    def work(self, run: str) -> float:
        """Weighted tokens a second of everybody."""
        return sum(p.work for p in self.tenants if p.run == run)

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "capacity": self.capacity,
            "max_step_s": self.max_step_s,
            "slo": asdict(self.slo),
            "bound_p95_s": self.bound_s,
            "holds": self.holds,
            "work": {p.run: self.work(p.run) for p in self.pooled},
            "quiet": [asdict(p) for p in self.pooled],
            "tenants": [asdict(p) for p in self.tenants],
            "w_local": [dict(line) for line in self.sweep],
        }


def text(report: Report) -> str:
    fair, alone, fcfs = (report.part(run) for run in ("deficit", "alone", "fcfs"))
    verdict = "holds" if report.holds else "DOES NOT HOLD"
    lines = [
        f"p95 to the first token of {fair.requests} quiet requests: alone {seconds(alone.p95_s)},"
        f" beside the neighbour {seconds(fair.p95_s)} (at most {seconds(report.bound_s)}), under"
        f" fcfs {seconds(fcfs.p95_s)}: {verdict}.",
        "Work of everybody, weighted tokens a second: deficit"
        f" {number(round(report.work('deficit')))}, fcfs {number(round(report.work('fcfs')))}.",
    ]
    return "\n\n".join(
        ["\n".join(lines), *(f"## {t.title}\n\n{rows_of(t)}" for t in _tables(report))]
    )


def write(report: Report, out: Path) -> None:
    """report.md and report.html."""
    (out / "report.md").write_text(f"# Isolation\n\n{text(report)}\n", encoding="utf-8")
    plots = [
        Plot(
            "first",
            "Time to first token of the quiet",
            "From when a request was due.",
            distribution(report.first, first_of, "time to first token"),
        ),
        Plot("local", "w_local", "p99 of each adapter's time in the queue.", _sweep_plot(report)),
    ]
    parts = [f'<p class="sub">{line}</p>' for line in text(report).splitlines()[:2]]
    parts.append(pair([figure(plot) for plot in plots if plot.svg]))
    parts += [table_of(table) for table in _tables(report)]
    (out / "report.html").write_text(document("Isolation", parts), encoding="utf-8")


def _tables(report: Report) -> list[Table]:
    head = ("tenant", "requests", "p50", "p95", "p99", "within the objective", "queue", "work/s")
    tables = [
        Table(
            run,
            head,
            [
                (p.tenant, number(p.requests), seconds(p.p50_s), seconds(p.p95_s),
                 seconds(p.p99_s), of(p.good, p.requests), seconds(p.queue_s),
                 number(round(p.work)))
                for p in (*report.pooled, *report.tenants)
                if p.run == run
            ],
        )
        for run in (p.run for p in report.pooled)
    ]  # fmt: skip
    local = ("w_local, s/token", "adapter p99, median", "worst", "all requests, p99")
    rows = [
        (f"{line['w_local']:g}", seconds(line["adapter_p99_median_s"]),
         seconds(line["adapter_p99_worst_s"]), seconds(line["p99_s"]))
        for line in report.sweep
    ]  # fmt: skip
    return [*tables, Table("Time in the queue by w_local (simulation)", local, rows)]


def _sweep_plot(report: Report) -> str:
    with axes() as (drawing, (ax,)):
        places = range(len(report.sweep))
        for key, colour in zip(
            ("adapter_p99_median_s", "adapter_p99_worst_s", "p99_s"), COLOURS, strict=False
        ):
            values = [line[key] for line in report.sweep]
            label = key.removesuffix("_s").replace("_", " ")
            ax.plot(places, values, "o-", color=colour, label=label)
        log_seconds(ax.yaxis, [line["p99_s"] for line in report.sweep])
        ax.set_xticks(list(places), [f"{line['w_local']:g}" for line in report.sweep])
        ax.set_xlabel("w_local, seconds a token")
        legend(ax, columns=3)
        return svg(drawing)
