"""`loraplex registry`: what an operator does to the registry itself, beside the service.

Exit codes as in `deployments.command_line.cli`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deployments.command_line.terminal import REFUSED, USAGE, Json, fail, show, warn
from deployments.config import load, registry_url
from deployments.control.rebuild import rebuild as rebuilt
from deployments.registry import open_registry
from deployments.registry.backup import back_up, bring_back
from deployments.registry.registry import Registry
from engine.adapters.store import open_store
from engine.errors import LoraplexError

registry_app = typer.Typer(no_args_is_help=True, help="Back up, restore and rebuild the registry.")

Config = Annotated[
    Path | None, typer.Option("--config", help="The service's configuration file.", exists=True)
]
Url = Annotated[
    str, typer.Option("--registry", help="Or its registry: sqlite:///path, redis://host/0.")
]


@registry_app.command()
def backup(
    file: Annotated[Path, typer.Argument(dir_okay=False)],
    config: Config = None,
    registry: Url = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of a FILE that is there.")
    ] = False,
) -> None:
    """Write all records to FILE, as they are at one moment. The service may run on."""
    with _opened(config, registry) as opened:
        number = back_up(opened, file, clock=time.time, replace=replace)
    typer.echo(f"{number} records are in {file}. Adapters' objects are in the object store.")


@registry_app.command()
def restore(
    file: Annotated[Path, typer.Argument(dir_okay=False, exists=True)],
    config: Config = None,
    registry: Url = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of the records that are there.")
    ] = False,
) -> None:
    """Put a backup into the registry in one step. A service that runs takes it over."""
    with _opened(config, registry) as opened:
        number = bring_back(opened, file, replace=replace)
    typer.echo(f"{number} records restored.")


@registry_app.command()
def rebuild(
    config: Config = None,
    registry: Url = "",
    store: Annotated[
        str, typer.Option(help="With --registry: the object store, file:///path or s3://bucket.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be restored, and change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make the records of adapters anew from the object store, where the registry is lost and there
    is no backup. Records that are there stay. Tenants, keys and aliases but production can't be
    restored: the store does not have them."""
    if bool(registry) != bool(store):
        fail("Give --store with --registry, or --config alone.", USAGE)
    with _opened(config, registry) as opened:
        settings = None if config is None else load(config)
        objects = (
            open_store(store)
            if settings is None
            else open_store(settings.store_url, settings.store_options)
        )
        report = rebuilt(opened, objects, dry_run=dry_run)
    verb = "Would restore" if dry_run else "Restored"
    number = sum(versions for _, versions in report.restored)
    said = f"{verb} {len(report.restored)} adapters with {number} versions"
    show(asdict(report), as_json, f"{said}; {len(report.kept)} were there and stay as they are.")
    warn([f"{version} is left out: {why}." for version, why in report.skipped])
    warn(
        [
            f"Tenant {tenant} is unknown, and keys can't be restored: loraplex tenants create"
            f" {tenant}."
            for tenant in report.tenants
        ]
    )


@contextmanager
def _opened(config: Path | None, url: str) -> Iterator[Registry]:
    if (config is None) == (not url):
        fail("Give either --config or --registry.", USAGE)
    try:
        opened = open_registry(registry_url(url) if config is None else load(config).registry_url)
        try:
            yield opened
        finally:
            opened.close()
    except (LoraplexError, OSError) as error:
        fail(getattr(error, "message", str(error)), REFUSED)
