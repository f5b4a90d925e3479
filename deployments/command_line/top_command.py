"""`loraplex top`: a live view of one service; once, or as JSON, for scripts."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from deployments.command_line.admin_client import AdminClient, Unreachable
from deployments.command_line.terminal import Json, client
from deployments.command_line.top_figures import Figures, figures
from deployments.command_line.top_view import num_lines, view

ONCE_TENANTS = 20

Interval = Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2, max=60)]
Once = Annotated[bool, typer.Option("--once", help="Look twice, print what was between, and end.")]
NumTenants = Annotated[
    int | None,
    typer.Option("--tenants", help="So many by name, the busiest; the rest pooled.", min=1),
]


def add_to(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    context: typer.Context,
    interval: Interval = 2.0,
    once: Once = False,
    num_tenants: NumTenants = None,
    as_json: Json = False,
) -> None:
    """Show what the service is doing: tenants, queue, steps, adapters by tier, stalls.

    Rates are those of the last interval. --json prints one object and ends, as --once does.
    """
    console = Console()
    with client(context) as service:
        if once or as_json:
            before = service.status()
            time.sleep(interval)
            told = figures(before, service.status(), num_tenants or ONCE_TENANTS)
            if as_json:
                typer.echo(json.dumps(dataclasses.asdict(told), indent=2))
            else:
                console.print(view(told, context.obj.url, console.width))
            return
        try:
            _live(service, console, context.obj.url, interval, num_tenants)
        except KeyboardInterrupt:
            return


def _live(
    service: AdminClient, console: Console, url: str, interval: float, num_tenants: int | None
) -> None:
    """Until Ctrl-C. A service that stops answering is waited for, and said so; one that never
    answered ends it (Unreachable)."""
    before: dict[str, Any] | None = None
    now = service.status()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            told = figures(before, now, num_tenants or 1000)
            if num_tenants is None:
                told = figures(before, now, _room(console, told, url))
            live.update(view(told, url, console.width, console.height), refresh=True)
            time.sleep(interval)
            before = now
            while True:
                try:
                    now = service.status()
                    break
                except Unreachable as error:
                    live.update(Text(f"{error}\nTrying again.", "bold red"), refresh=True)
                    time.sleep(interval)


def _room(console: Console, told: Figures, url: str) -> int:
    """How many tenants can be named, where a view of none has a line that says so."""
    empty = view(dataclasses.replace(told, tenants=()), url, console.width, console.height)
    return max(1, console.height - num_lines(console, empty))
