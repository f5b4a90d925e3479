"""`loraplex`: adapters and tenants from the command line, over REST.

Exit codes: 0 done, 1 the service refused, 2 wrong usage, 3 the service can't be reached.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from deployments.changes.tenants import Tenants
from deployments.command_line.adapter_commands import adapters_app
from deployments.command_line.registry_commands import registry_app
from deployments.command_line.store_commands import store_app
from deployments.command_line.tenant_commands import tenants_app
from deployments.command_line.terminal import REFUSED, USAGE, Commands, Json, fail, show
from deployments.command_line.top_command import add_to as add_top
from deployments.command_line.usage_commands import add_to as add_usage
from deployments.command_line.warmth_commands import add_to as add_warmth_commands
from deployments.config import ClientConfig, load, registry_url
from deployments.doctor.commands import add_to as add_doctor
from deployments.registry import open_registry
from deployments.registry.records import KEYS, KeyRecord, Role
from deployments.registry.registry import Registry
from engine.errors import LoraplexError

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, help="Operate a loraplex service."
)
add_warmth_commands(adapters_app)
app.add_typer(adapters_app, name="adapters")
app.add_typer(tenants_app, name="tenants")
app.add_typer(store_app, name="store")
app.add_typer(registry_app, name="registry")


add_doctor(app)
add_top(app)
add_usage(app)


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="The service. Or LORAPLEX_URL.")] = "",
    admin_key: Annotated[
        str,
        typer.Option(help="An admin's key, or a tenant's that may publish. Or LORAPLEX_ADMIN_KEY."),
    ] = "",
) -> None:
    """Operate a loraplex service."""
    given = ClientConfig.from_environment()
    context.obj = ClientConfig(url or given.url, admin_key or given.admin_key)


@app.command()
def bootstrap(
    config: Annotated[
        Path | None, typer.Option(help="The service's configuration file.", exists=True)
    ] = None,
    registry: Annotated[str, typer.Option(help="Or its registry: sqlite:///path.")] = "",
    another: Annotated[bool, typer.Option(help="Even though there is an admin key.")] = False,
    as_json: Json = False,
) -> None:
    """Make an admin key in the registry itself: the first one, before any service runs."""
    if (config is None) == (not registry):
        fail("Give either --config or --registry.", USAGE)
    try:
        url = registry_url(registry) if config is None else load(config).registry_url
        opened = open_registry(url)
        try:
            if _has_admin(opened) and not another:
                fail("There is an admin key already. --another makes one more.", REFUSED)
            made = Tenants(opened, clock=time.time, random_bytes=secrets.token_bytes)
            key = made.create_admin_key()
        finally:
            opened.close()
    except LoraplexError as error:
        fail(error.message, REFUSED)
    show({"object": "key", "key": key}, as_json, f"An admin key, shown this once:\n{key}")


def _has_admin(registry: Registry) -> bool:
    records = (KeyRecord.from_value(e.value) for e in registry.list(KEYS).entries)
    return any(r.role == Role.ADMIN and r.revoked_s is None for r in records)
