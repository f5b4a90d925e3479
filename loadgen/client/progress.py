"""A run's progress, in a terminal or as lines of a log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.client.tally import Tally

LIVE_S = 1.0
LINE_S = 10.0


async def show(
    console: Console, tally: Tally, now_s: Callable[[], float], duration_s: float
) -> None:
    """Until cancelled. Drawn on the run's own thread and once a second: a thread of its own would
    hold the interpreter when a request is due."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LINE_S)
            told = line(tally, now_s(), duration_s)
            console.print(told, highlight=False, soft_wrap=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(screen(tally, now_s(), duration_s), refresh=True)
            await asyncio.sleep(LIVE_S)


def line(tally: Tally, now_s: float, duration_s: float) -> str:
    """One line of a log."""
    return (
        f"{now_s:.0f} of {duration_s:.0f} s: {tally.num_sent} of {tally.num_scheduled} sent,"
        f" {tally.num_running} running, {tally.num_failed} failed, first token p50"
        f" {_quantile(tally.recent_first_s, 0.5)} p99 {_quantile(tally.recent_first_s, 0.99)}"
    )


def screen(tally: Tally, now_s: float, duration_s: float) -> Group:
    """What a terminal shows."""
    bar = ProgressBar(total=duration_s, completed=min(max(now_s, 0.0), duration_s), width=40)
    head = Table.grid(padding=(0, 2))
    head.add_row(bar, f"{max(now_s, 0):.0f} of {duration_s:.0f} s")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("sent", f"{tally.num_sent} of {tally.num_scheduled}")
    table.add_row("running", str(tally.num_running))
    table.add_row("answered", f"[green]{tally.by_status['ok']}[/]")
    table.add_row("tokens a second", f"{tally.num_tokens / max(now_s, 1.0):.1f}")
    for q in (0.5, 0.99):
        table.add_row(f"first token p{q * 100:.0f}", _quantile(tally.recent_first_s, q))
    table.add_row("sent late by p99", _quantile(tally.recent_lag_s, 0.99))
    for kind, count in sorted(tally.by_status.items()):
        if kind != "ok":
            table.add_row(Text(kind, "red"), Text(str(count), "red"))
    return Group(head, table)


def _quantile(values: Iterable[float], q: float) -> str:
    """In words."""
    known = list(values)
    if not known:
        return "-"
    seconds = float(np.quantile(known, q))
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
