"""A report as one HTML page with everything in it: no script, no font, nothing fetched."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from loadgen.report import tables
from loadgen.report.plots import Plot
from loadgen.report.summary import Report
from loadgen.report.tables import Table

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #222; background: #fff;
       max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 1.6rem; margin: 0 0 .2em; } h2 { font-size: 1.15rem; margin: 2.2em 0 .6em; }
p.sub, figcaption { color: #555; margin: .1em 0 .6em; }
p.warning { background: #fff4e5; border-left: 4px solid #d55e00; padding: .5em .8em; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 0 36px;
        align-items: start; }
figure { margin: 0 0 1.6em; } figure img { width: 100%; height: auto; }
figure h2 { margin-bottom: .1em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px 3px 0; text-align: right; border-bottom: 1px solid #eee;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
td.words { text-align: left; white-space: normal; min-width: 16em; }
th { font-weight: 600; border-bottom-color: #bbb; }
tbody tr:hover { background: #f6f8fa; }
details summary { cursor: pointer; color: #0072b2; margin: .6em 0; }
"""


def page(report: Report, plots: Sequence[Plot]) -> str:
    facts = report.facts
    sub = f"{facts.began}, {facts.url}, {len(report.tenants)} tenants"
    parts = [f'<p class="sub">{escape(sub)}</p>']
    parts += [f'<p class="warning">{escape(w)}</p>' for w in tables.warnings(report)]
    parts.append(pair([table_of(tables.headline(report)), table_of(tables.work(report))]))
    parts.append(pair([figure(plot) for plot in plots]))
    parts.append(_tenants(report))
    parts.append(
        table_of(tables.groups("Adapters by popularity, in tenths", report.deciles, "tenth"))
    )
    for table in (tables.errors(report), tables.faults(report)):
        parts.append(table_of(table))
    parts.append(pair([table_of(tables.server(report)), table_of(tables.generator(report))]))
    return document(f"{facts.scenario}, seed {facts.seed}", parts)


def _tenants(report: Report) -> str:
    """Few: all of them. Many: the slowest, and all behind a click."""
    if len(report.tenants) <= tables.SHOWN:
        return table_of(tables.groups("Tenants", report.tenants, "tenant"))
    title = f"Tenants: the {tables.SHOWN} slowest of {len(report.tenants)}"
    few = table_of(tables.groups(title, tables.worst(report.tenants), "tenant"))
    every = table_of(tables.groups("", report.tenants, "tenant"))
    return f"{few}<details><summary>All {len(report.tenants)} tenants</summary>{every}</details>"


def document(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def pair(parts: Sequence[str]) -> str:
    inner = "\n".join(f"<div>{part}</div>" for part in parts if part)
    return f'<div class="pair">{inner}</div>' if inner else ""


def figure(plot: Plot) -> str:
    """As an image, so that one plot's definitions can't meet another's."""
    data = base64.b64encode(plot.svg.encode()).decode()
    note = f"<figcaption>{escape(plot.note)}</figcaption>" if plot.note else ""
    return (
        f"<figure><h2>{escape(plot.title)}</h2>{note}"
        f'<img alt="{escape(plot.title)}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def table_of(table: Table) -> str:
    """Nothing of no rows."""
    if not table.rows:
        return ""
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    head = ""
    if any(table.header):
        head = "<thead><tr>" + "".join(f"<th>{escape(h)}</th>" for h in table.header)
        head += "</tr></thead>"
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return f'{title}<div class="wide"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'


def _cell(text: str) -> str:
    kind = ' class="words"' if len(text) > 32 else ""
    return f"<td{kind}>{escape(text)}</td>"
