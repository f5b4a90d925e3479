"""`loraplex tenants`: who is served, their limits and their keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from deployments.command_line.tenant_options import MAY_BE_NONE, with_options
from deployments.command_line.terminal import USAGE, After, Json, Limit, client, fail, show, table

tenants_app = typer.Typer(no_args_is_help=True, help="Make and change tenants and their keys.")

TenantId = Annotated[str, typer.Argument(metavar="TENANT")]
LIMITS = (*MAY_BE_NONE, "allowed_ranks")
FLAGS = ("self_publish", "log_content")


@tenants_app.command("create")
@with_options
def create_tenant(
    context: typer.Context, tenant: str, fields: dict[str, Any], as_json: bool
) -> None:
    """Make a tenant and print its key, which is shown this once."""
    with client(context) as service:
        answer = service.create_tenant(id=tenant, **fields)
    show(answer, as_json, f"Created {tenant}. Its key, shown this once:\n{answer['key']}")


@tenants_app.command("change")
@with_options
def change_tenant(
    context: typer.Context, tenant: str, fields: dict[str, Any], as_json: bool
) -> None:
    """Change what is given; the rest stays. Every ingress knows within two seconds."""
    if not fields:
        fail("Give what is to change.", USAGE)
    with client(context) as service:
        answer = service.change_tenant(tenant, **fields)
    show(answer, as_json, f"Changed {', '.join(fields)} of {tenant}.")


@tenants_app.command("suspend")
def suspend(context: typer.Context, tenant: TenantId, as_json: Json = False) -> None:
    """Serve nothing to a tenant's keys until it is resumed. Requests in progress end as they
    began."""
    with client(context) as service:
        answer = service.suspend(tenant)
    show(answer, as_json, f"Suspended {tenant}.")


@tenants_app.command("resume")
def resume(context: typer.Context, tenant: TenantId, as_json: Json = False) -> None:
    """Serve a suspended tenant again."""
    with client(context) as service:
        answer = service.resume(tenant)
    show(answer, as_json, f"Resumed {tenant}.")


@tenants_app.command("list")
def list_tenants(
    context: typer.Context, limit: Limit = None, after: After = "", as_json: Json = False
) -> None:
    """List tenants, their limits and the beginnings of their keys."""
    with client(context) as service:
        found = service.tenants(limit, after)
    rows = [
        [
            t["id"],
            f"{t['weight']:g}",
            str(t["max_concurrent"]),
            str(t["max_queued"]),
            _limits(t),
            ", ".join(t["keys"]) or "-",
            _state(t),
        ]
        for t in found
    ]
    columns = ["tenant", "weight", "max concurrent", "max queued", "limits", "keys", "state"]
    show(found, as_json, table(columns, rows))


@tenants_app.command("rotate-key")
def rotate_key(context: typer.Context, tenant: TenantId, as_json: Json = False) -> None:
    """Replace all keys of a tenant by a new one; the old ones end within two seconds."""
    with client(context) as service:
        answer = service.rotate_key(tenant)
    show(answer, as_json, f"The new key of {tenant}, shown this once:\n{answer['key']}")


def _limits(tenant: dict[str, Any]) -> str:
    """Those that it has."""
    return ", ".join(f"{name} {tenant[name]}" for name in LIMITS if tenant[name]) or "-"


def _state(tenant: dict[str, Any]) -> str:
    state = "suspended" if tenant["suspended"] else "active"
    return ", ".join([state, *(flag for flag in FLAGS if tenant[flag])])
