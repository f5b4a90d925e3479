"""`loraplex store`: the object store."""

from __future__ import annotations

from typing import Annotated

import typer

from deployments.command_line.terminal import Json, client, show, size, table, warn

store_app = typer.Typer(no_args_is_help=True, help="Look after the object store.")


@store_app.callback()
def group() -> None:
    """Look after the object store."""


@store_app.command("sweep")
def sweep(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what no adapter needs any more. The service does so by itself, now and then."""
    with client(context) as service:
        report = service.sweep(dry_run)
    rows = [[r["prefix"], r["why"], size(r["num_bytes"])] for r in report["removed"]]
    if rows or as_json:
        show(report, as_json, table(["removed", "why", "MiB"], rows))
    if not as_json:
        verb = "Would remove" if dry_run else "Removed"
        typer.echo(
            f"{verb} {len(rows)} and {report['unfinished']} half-written;"
            f" {report['kept_young']} more may go once they are older than"
            f" {report['grace_s']:g} s."
        )
    warn(
        [
            f"{key} can't be read, so nothing of its tenant was removed. Upgrade this service."
            for key in report["unreadable"]
        ]
    )
