"""The few lines of a report that end a run in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from loadgen.report import tables
from loadgen.report.summary import Report


def show_summary(report: Report, console: Console) -> None:
    parts = (tables.headline, tables.server, tables.errors, tables.generator)
    for table in (part(report) for part in parts):
        if not table.rows:
            continue
        grid = Grid.grid(padding=(0, 2))
        for number in range(len(table.header)):
            grid.add_column(
                justify="right" if number in (1, 2) and len(table.header) > 2 else "left"
            )
        for row in table.rows:
            grid.add_row(*(Text(cell) for cell in row))
        console.print(Text(f"\n{table.title}", "bold"))
        console.print(grid)
    for warning in tables.warnings(report):
        console.print(Text(f"! {warning}", "yellow"), soft_wrap=not console.is_terminal)
