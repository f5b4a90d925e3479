"""A report as Markdown, with links to its plots."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.report import tables
from loadgen.report.plots import Plot
from loadgen.report.summary import Report
from loadgen.report.tables import Table


def markdown(report: Report, plots: Sequence[Plot]) -> str:
    facts = report.facts
    parts = [f"# {facts.scenario}, seed {facts.seed}"]
    parts += [f"> {warning}" for warning in tables.warnings(report)]
    title = "Tenants"
    if len(report.tenants) > tables.SHOWN:
        title += f": the {tables.SHOWN} slowest of {len(report.tenants)} (all in report.json)"
    for table in (
        tables.headline(report),
        tables.work(report),
        tables.groups(title, tables.worst(report.tenants), "tenant"),
        tables.groups("Adapters by popularity, in tenths", report.deciles, "tenth"),
        tables.errors(report),
        tables.server(report),
        tables.faults(report),
        tables.generator(report),
    ):
        if table.rows:
            parts.append(f"## {table.title}\n\n{rows_of(table)}")
    parts += [f"## {p.title}\n\n{p.note}\n\n![{p.title}](plots/{p.name}.svg)" for p in plots]
    return "\n\n".join(parts) + "\n"


def rows_of(table: Table) -> str:
    marks = ["---"] + ["---:"] * (len(table.header) - 1)
    lines = [table.header, marks, *table.rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
