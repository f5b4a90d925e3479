"""`loraplex`: adapters and tenants from the command line, over REST.

Exit codes: 0 done, 1 the service refused, 2 wrong usage, 3 the service can't be reached.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from deployments.admin_client import AdminClient, Refused, Unreachable, Unusable
from deployments.config import ClientConfig, load, registry_url
from deployments.registry import open_registry
from deployments.registry.records import KEYS, KeyRecord, Role
from deployments.registry.registry import Registry
from deployments.registry_commands import registry_app
from deployments.tenants import Tenants
from engine.errors import LoraplexError

REFUSED, USAGE, UNREACHABLE = 1, 2, 3

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Operate a loraplex service.")
adapters = typer.Typer(no_args_is_help=True, help="Publish, look at and retire adapters.")
tenants = typer.Typer(no_args_is_help=True, help="Make tenants and their keys.")
app.add_typer(adapters, name="adapters")
app.add_typer(tenants, name="tenants")
app.add_typer(registry_app, name="registry")

Json = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
Adapter = Annotated[str, typer.Argument(metavar="TENANT/NAME")]
TenantId = Annotated[str, typer.Argument(metavar="TENANT")]


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="The service. Or LORAPLEX_URL.")] = "",
    admin_key: Annotated[str, typer.Option(help="An admin key. Or LORAPLEX_ADMIN_KEY.")] = "",
) -> None:
    """Operate a loraplex service."""
    given = ClientConfig.from_environment()
    context.obj = ClientConfig(url or given.url, admin_key or given.admin_key)


@adapters.command("publish")
def publish(
    context: typer.Context,
    adapter: Adapter,
    folder: Annotated[str, typer.Argument(help="A PEFT folder below the import root.")],
    base: Annotated[
        str | None, typer.Option(help="Assert that the adapter was trained on this base.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish a folder as the new version of TENANT/NAME."""
    tenant, name = _split(adapter)
    with _client(context) as client:
        answer = client.publish(tenant, name, folder, base)
    version = answer["versions"][0]
    _show(answer, as_json, f"Published {answer['model']} as {version['digest'][:12]}.")
    _warn(version["warnings"])


@adapters.command("list")
def list_adapters(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    as_json: Json = False,
) -> None:
    """List adapters and where they are."""
    with _client(context) as client:
        found = client.adapters(tenant)
    rows = [
        [
            a["model"],
            a["status"],
            (a["digest"] or "-")[:12],
            _ranks(a),
            str(len(a["versions"])),
            _places(a),
        ]
        for a in found
    ]
    columns = ["adapter", "status", "digest", "ranks", "versions", "where"]
    _show(found, as_json, _table(columns, rows))


@adapters.command("show")
def show(context: typer.Context, adapter: Adapter, as_json: Json = False) -> None:
    """Show one adapter: its versions, where it is, and why it failed if it did."""
    tenant, name = _split(adapter)
    with _client(context) as client:
        found = client.adapter(tenant, name)
    columns = ["digest", "ranks", "MiB", "published", "by", "base", "state"]
    rows = [_version_row(v, found["digest"]) for v in found["versions"]]
    _show(found, as_json, f"{found['model']}: {found['status']}. {_places(found)}".rstrip())
    if not as_json:
        Console(markup=False).print(_table(columns, rows))
        _warn([w for v in found["versions"] for w in v["warnings"]])
        _warn([p["why"] for p in found["replicas"] if p["why"]])


@adapters.command("retire")
def retire(context: typer.Context, adapter: Adapter, as_json: Json = False) -> None:
    """Take TENANT/NAME out of service. Requests in progress end as they began."""
    tenant, name = _split(adapter)
    with _client(context) as client:
        answer = client.retire(tenant, name)
    _show(answer, as_json, f"Retired {answer['model']}.")


@tenants.command("create")
def create_tenant(
    context: typer.Context,
    tenant: TenantId,
    weight: Annotated[float, typer.Option(help="Share of the service.")] = 1.0,
    max_concurrent: Annotated[int, typer.Option(help="Sequences in progress at once.")] = 256,
    max_queued: Annotated[int, typer.Option(help="Of those, without a first token.")] = 128,
    as_json: Json = False,
) -> None:
    """Make a tenant and print its key, which is shown this once."""
    with _client(context) as client:
        answer = client.create_tenant(
            id=tenant, weight=weight, max_concurrent=max_concurrent, max_queued=max_queued
        )
    _show(answer, as_json, f"Created {tenant}. Its key, shown this once:\n{answer['key']}")


@tenants.command("list")
def list_tenants(context: typer.Context, as_json: Json = False) -> None:
    """List tenants, their limits and the beginnings of their keys."""
    with _client(context) as client:
        found = client.tenants()
    rows = [
        [
            t["id"],
            f"{t['weight']:g}",
            str(t["max_concurrent"]),
            str(t["max_queued"]),
            ", ".join(t["keys"]) or "-",
            "suspended" if t["suspended"] else "active",
        ]
        for t in found
    ]
    columns = ["tenant", "weight", "max concurrent", "max queued", "keys", "state"]
    _show(found, as_json, _table(columns, rows))


@tenants.command("rotate-key")
def rotate_key(context: typer.Context, tenant: TenantId, as_json: Json = False) -> None:
    """Replace all keys of a tenant by a new one; the old ones end within two seconds."""
    with _client(context) as client:
        answer = client.rotate_key(tenant)
    _show(answer, as_json, f"The new key of {tenant}, shown this once:\n{answer['key']}")


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
        _fail("Give either --config or --registry.", USAGE)
    try:
        url = registry_url(registry) if config is None else load(config).registry_url
        opened = open_registry(url)
        try:
            if _has_admin(opened) and not another:
                _fail("There is an admin key already. --another makes one more.", REFUSED)
            made = Tenants(opened, clock=time.time, random_bytes=secrets.token_bytes)
            key = made.create_admin_key()
        finally:
            opened.close()
    except LoraplexError as error:
        _fail(error.message, REFUSED)
    _show({"object": "key", "key": key}, as_json, f"An admin key, shown this once:\n{key}")


def _has_admin(registry: Registry) -> bool:
    records = (KeyRecord.from_value(e.value) for e in registry.list(KEYS).entries)
    return any(r.role == Role.ADMIN and r.revoked_s is None for r in records)


@contextmanager
def _client(context: typer.Context) -> Iterator[AdminClient]:
    config: ClientConfig = context.obj
    if not config.admin_key:
        _fail("No admin key. Give --admin-key or set LORAPLEX_ADMIN_KEY.", USAGE)
    try:
        client = AdminClient(config)
        try:
            yield client
        finally:
            client.close()
    except Refused as error:
        _fail(str(error), REFUSED)
    except Unreachable as error:
        _fail(str(error), UNREACHABLE)
    except Unusable as error:
        _fail(str(error), USAGE)


def _split(adapter: str) -> tuple[str, str]:
    tenant, _, name = adapter.partition("/")
    if not tenant or not name or "/" in name:
        _fail(f"{adapter!r} is not TENANT/NAME.", USAGE)
    return tenant, name


def _fail(message: str, code: int) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        Console(stderr=True).print(f"note: {warning}", markup=False, soft_wrap=True)


def _show(answer: Any, as_json: bool, otherwise: str | Table) -> None:
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    elif isinstance(otherwise, Table):
        Console(markup=False).print(otherwise)
    else:
        typer.echo(otherwise)


def _table(columns: list[str], rows: list[list[str]]) -> Table:
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def _ranks(adapter: dict[str, Any]) -> str:
    current = [v for v in adapter["versions"] if v["digest"] == adapter["digest"]]
    return ",".join(str(r) for r in current[0]["ranks"]) if current else "-"


def _places(adapter: dict[str, Any]) -> str:
    return ", ".join(f"{p['tier']} on replica {p['slot']}" for p in adapter["replicas"])


def _version_row(version: dict[str, Any], current: str | None) -> list[str]:
    published = datetime.fromtimestamp(version["published_s"], UTC)
    state = "retired" if version["retired_s"] is not None else "kept"
    base = version["base"] + (" (asserted)" if version["asserted_by"] else "")
    return [
        version["digest"][:12],
        ",".join(str(r) for r in version["ranks"]),
        f"{version['num_bytes'] / (1 << 20):.2f}",
        f"{published:%Y-%m-%d %H:%M:%S}Z",
        version["by"],
        base,
        "current" if version["digest"] == current else state,
    ]
