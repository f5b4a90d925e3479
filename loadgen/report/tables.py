"""A report's tables: plain rows of text, which Markdown, HTML and the terminal show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.report.groups import Group
from loadgen.report.stats import Quantiles
from loadgen.report.summary import MAX_LAG_S, Report
from loadgen.report.words import NONE, number, of, part, seconds

LEVELS = ("p50", "p95", "p99")
SHOWN = 20
"""Tenants in a table that a person reads; of more, those with the largest p99."""


@dataclass(frozen=True, slots=True)
class Table:
    """header: its first column is words, the others numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def headline(report: Report) -> Table:
    """What a run comes to."""
    whole, slo = report.whole, report.slo
    rows = [
        ("requests due", number(whole.requests)),
        ("answered", f"{number(whole.ok)} ({of(whole.ok, whole.requests)})"),
        (
            f"within the SLO (first token {seconds(slo.first_s)}, later ones"
            f" {seconds(slo.token_s)})",
            f"{number(whole.good)} ({of(whole.good, whole.requests)})",
        ),
        ("goodput", f"{number(report.goodput)} requests/s"),
        ("answer tokens", f"{number(report.tokens_per_s)} tokens/s"),
        ("time to first token, p50 / p95 / p99", _three(whole.first)),
        ("gap between pieces of text, p50 / p95 / p99", _three(whole.gap)),
        ("time of a later token, p50 / p95 / p99", _three(whole.token)),
        ("adapter's first request: first token, p50 / p95 / p99", _three(report.cold)),
        ("least popular tenants: first token, p50 / p95 / p99", _three(report.unpopular.first)),
        ("adapters being answered at once, p50 / max", _adapters(report)),
        ("Jain index, tenants with work", _index(report.timeline.jain_contended)),
        ("Jain index, all tenants", _index(report.jain_service)),
    ]
    return Table("Headline", ("", ""), rows)


def work(report: Report) -> Table:
    """What was asked: a skew parameter never without the shares it gives."""
    facts = report.facts
    rows = [
        ("scenario", f"{facts.scenario}, seed {facts.seed}"),
        *((name, _value(value)) for name, value in facts.parameters.items()),
        ("share of the most popular adapter", part(facts.shares["top_1"])),
        ("share of the ten most popular", part(facts.shares["top_10"])),
        ("adapters asked for", number(facts.shares["num_adapters"])),
        ("tenants that asked", number(len(report.tenants))),
        ("digest of the schedule", facts.digest[:16]),
        ("endpoint", f"{facts.url}, {facts.settings['endpoint']}"),
        ("began", facts.began),
        ("took", seconds(facts.wall_s) + (" (interrupted)" if facts.interrupted else "")),
    ]
    return Table("Workload", ("", ""), rows)


def generator(report: Report) -> Table:
    rows = [
        ("requests sent late by, p50 / p95 / p99", _three(report.lag)),
        ("prompt tokens, of those asked for", part(report.input_ratio)),
        ("answers without usage, tokens counted by pieces", number(report.estimated)),
    ]
    return Table("The generator itself", ("", ""), rows)


def groups(title: str, members: Sequence[Group], first_column: str) -> Table:
    header = (
        first_column, "adapters", "requests", "answered", "within SLO", "first p50", "p95", "p99",
        "gap p50", "p95", "p99", "answer tokens",
    )  # fmt: skip
    return Table(title, header, [_group_row(g) for g in members])


def worst(members: Sequence[Group]) -> list[Group]:
    """At most SHOWN: those whose first token took longest, and none answered before all."""
    ranked = sorted(members, key=lambda g: (g.first is not None, -(g.first.p99 if g.first else 0)))
    return ranked[:SHOWN]


def errors(report: Report) -> Table:
    found = report.errors
    rows = [
        (kind, number(count), of(count, report.whole.requests), found.examples.get(kind, ""))
        for kind, count in found.by_kind.items()
    ]
    if found.retry_after_s is not None:
        q = found.retry_after_s
        asked = f"{number(q.p50)} s at p50, {number(q.max)} s at most"
        rows.append(("asked to come again", number(q.count), "", f"Retry-After {asked}"))
    return Table("What went wrong", ("kind", "requests", "part", "for example"), rows)


def server(report: Report) -> Table:
    """Empty where the service offered nothing."""
    found = report.server
    if found is None:
        return Table("The service's own counters", ("", ""), [])
    rates = found.hit_rates
    hits = ", ".join(f"{tier} {part(rate)}" for tier, rate in rates.items())
    steps = found.totals["num_steps"]
    rows = [
        ("replicas, cores that lived", f"{found.num_replicas}, {found.num_cores}"),
        ("adapter was there when a request came", hits or "not offered"),
        (
            "steps, replayed from a graph",
            f"{number(steps)}, {_ratio(found.totals, 'num_replayed')}",
        ),
        (
            "p99 of a step, over the run",
            seconds(found.step_p99_s.max if found.step_p99_s else None),
        ),
        ("overhead of adapters over a step without", part(found.overhead)),
        ("prompt tokens from the prefix cache", part(_cached(found.totals))),
        ("adapter loads, evictions", _pair(found.totals, "num_loads", "num_evictions")),
        ("preemptions, page moves", _pair(found.totals, "num_preemptions", "num_moves")),
    ]
    return Table("The service's own counters", ("", ""), rows)


def faults(report: Report) -> Table:
    rows = [
        (f"{i}: {f.command}", seconds(f.at_s), NONE if f.exit_code is None else
         str(f.exit_code), f.output.strip().splitlines()[-1] if f.output.strip() else "")
        for i, f in enumerate(report.facts.faults, start=1)
    ]  # fmt: skip
    return Table("Faults", ("command", "at", "exit", "said"), rows)


def warnings(report: Report) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    if report.facts.interrupted:
        found.append("The run was interrupted: requests that were not sent count as not answered.")
    if report.lag is not None and report.lag.p99 > MAX_LAG_S:
        found.append(
            f"The generator was late itself: p99 {seconds(report.lag.p99)}. Latencies have that in"
            " them; run it on a machine with more to spare, or split the load."
        )
    if report.input_ratio is not None and not 0.8 <= report.input_ratio <= 1.25:
        found.append(
            f"Prompts had {part(report.input_ratio)} of the tokens asked for: the model's tokens"
            " are not our words."
        )
    failed = report.whole.requests - report.whole.ok
    if failed:
        found.append(
            f"{number(failed)} of {number(report.whole.requests)} requests were not answered."
            " Latencies are of those that got a first token; goodput counts all."
        )
    return found


def _group_row(g: Group) -> list[str]:
    def levels(q: Quantiles | None) -> list[str]:
        return [seconds(_p(q, level)) for level in LEVELS]

    return [
        g.name, number(g.num_adapters), number(g.requests), of(g.ok, g.requests),
        of(g.good, g.requests), *levels(g.first), *levels(g.gap), number(g.completion_tokens),
    ]  # fmt: skip


def _p(q: Quantiles | None, level: str) -> float | None:
    return None if q is None else float(getattr(q, level))


def _three(q: Quantiles | None) -> str:
    return " / ".join(seconds(_p(q, level)) for level in LEVELS)


def _adapters(report: Report) -> str:
    q = report.adapters
    return NONE if q is None else f"{number(q.p50)} / {number(q.max)}"


def _index(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _ratio(totals: Mapping[str, float], name: str) -> str:
    return part(totals[name] / totals["num_steps"]) if totals["num_steps"] else NONE


def _cached(totals: Mapping[str, float]) -> float | None:
    return totals["cached_tokens"] / totals["prompt_tokens"] if totals["prompt_tokens"] else None


def _pair(totals: Mapping[str, float], first: str, second: str) -> str:
    return f"{number(totals[first])}, {number(totals[second])}"
