"""The table of metrics in docs/observability.md: `python -m deployments.telemetry.reference FILE`
writes it anew between its two marks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployments.telemetry.instrument import Instrument, Kind
from deployments.telemetry.instruments import ALL
from deployments.telemetry.ray_endpoint import RAY_PREFIX

BEGIN, END = "<!-- metrics: made by deployments.telemetry.reference -->", "<!-- end of metrics -->"
HEAD = "| metric | kind | unit | labels | reported by | meaning |\n|---|---|---|---|---|---|\n"


def table() -> str:
    return HEAD + "".join(_row(instrument) for instrument in ALL)


def with_table(page: str) -> str:
    """The page with the present table. Raises ValueError where it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def _row(instrument: Instrument) -> str:
    parts = " (`_bucket`, `_sum`, `_count`)" if instrument.kind is Kind.HISTOGRAM else ""
    labels = ", ".join(f"`{label}`" for label in instrument.labels)
    cells = (
        f"`{RAY_PREFIX}{instrument.prometheus}`{parts}",
        instrument.kind.value,
        instrument.unit,
        labels,
        instrument.where.value,
        instrument.help,
    )
    return f"| {' | '.join(cells)} |\n"


def main(page: Annotated[Path, typer.Argument(help="the page that has the table")]) -> None:
    """Write the table of metrics anew."""
    page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    typer.run(main)
