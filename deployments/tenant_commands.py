"""`loraplex tenants`: who is served, their limits and their keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from deployments.terminal import USAGE, After, Json, Limit, client, fail, show, table

tenants_app = typer.Typer(no_args_is_help=True, help="Make and change tenants and their keys.")

LIMITS = (
    "max_tokens_per_minute",
    "max_adapters",
    "max_adapter_bytes",
    "max_rank",
    "max_host_bytes",
    "max_device_bytes",
    "soft_kv_share",
    "hard_kv_share",
)
TenantId = Annotated[str, typer.Argument(metavar="TENANT")]
Weight = Annotated[float | None, typer.Option(help="Share of the service.")]
MaxConcurrent = Annotated[int | None, typer.Option(help="Sequences in progress at once.")]
MaxQueued = Annotated[int | None, typer.Option(help="Of those, without a first token.")]
MaxTokens = Annotated[
    int | None, typer.Option(help="Tokens of prompts and answers a minute; -1: any number.")
]
MaxAdapters = Annotated[int | None, typer.Option(help="Adapters it may have; -1: any number.")]
MaxBytes = Annotated[int | None, typer.Option(help="Stored bytes it may have; -1: any number.")]
MaxRank = Annotated[int | None, typer.Option(help="Largest rank it may publish; -1: any.")]
MaxHostBytes = Annotated[
    int | None, typer.Option(help="Its adapters' bytes in a replica's host memory; -1: any number.")
]
MaxDeviceBytes = Annotated[
    int | None, typer.Option(help="Its adapters' bytes on a replica's device; -1: any number.")
]
SoftKvShare = Annotated[
    float | None,
    typer.Option(help="Part of a replica's KV pages beyond which it borrows, 0 to 1; -1: any."),
]
HardKvShare = Annotated[
    float | None, typer.Option(help="Part of a replica's KV pages that it may have; -1: any.")
]
Ranks = Annotated[str | None, typer.Option(help="Ranks it may publish, as 8,16; any: any.")]
SelfPublish = Annotated[
    bool | None,
    typer.Option(
        "--self-publish/--no-self-publish", help="Whether its own key may change its adapters."
    ),
]
LogContent = Annotated[
    bool | None,
    typer.Option(
        "--log-content/--no-log-content", help="Whether its prompts and answers are logged."
    ),
]


@tenants_app.command("create")
def create_tenant(
    context: typer.Context,
    tenant: TenantId,
    weight: Weight = None,
    max_concurrent: MaxConcurrent = None,
    max_queued: MaxQueued = None,
    max_tokens_per_minute: MaxTokens = None,
    max_adapters: MaxAdapters = None,
    max_adapter_bytes: MaxBytes = None,
    max_rank: MaxRank = None,
    max_host_bytes: MaxHostBytes = None,
    max_device_bytes: MaxDeviceBytes = None,
    soft_kv_share: SoftKvShare = None,
    hard_kv_share: HardKvShare = None,
    allowed_ranks: Ranks = None,
    self_publish: SelfPublish = None,
    log_content: LogContent = None,
    as_json: Json = False,
) -> None:
    """Make a tenant and print its key, which is shown this once."""
    fields = _fields(
        weight=weight,
        max_concurrent=max_concurrent,
        max_queued=max_queued,
        max_tokens_per_minute=max_tokens_per_minute,
        max_adapters=max_adapters,
        max_adapter_bytes=max_adapter_bytes,
        max_rank=max_rank,
        max_host_bytes=max_host_bytes,
        max_device_bytes=max_device_bytes,
        soft_kv_share=soft_kv_share,
        hard_kv_share=hard_kv_share,
        allowed_ranks=_ranks(allowed_ranks),
        self_publish=self_publish,
        log_content=log_content,
    )
    with client(context) as service:
        answer = service.create_tenant(id=tenant, **fields)
    show(answer, as_json, f"Created {tenant}. Its key, shown this once:\n{answer['key']}")


@tenants_app.command("change")
def change_tenant(
    context: typer.Context,
    tenant: TenantId,
    weight: Weight = None,
    max_concurrent: MaxConcurrent = None,
    max_queued: MaxQueued = None,
    max_tokens_per_minute: MaxTokens = None,
    max_adapters: MaxAdapters = None,
    max_adapter_bytes: MaxBytes = None,
    max_rank: MaxRank = None,
    max_host_bytes: MaxHostBytes = None,
    max_device_bytes: MaxDeviceBytes = None,
    soft_kv_share: SoftKvShare = None,
    hard_kv_share: HardKvShare = None,
    allowed_ranks: Ranks = None,
    self_publish: SelfPublish = None,
    log_content: LogContent = None,
    as_json: Json = False,
) -> None:
    """Change what is given; the rest stays. Every ingress knows within two seconds."""
    fields = _fields(
        weight=weight,
        max_concurrent=max_concurrent,
        max_queued=max_queued,
        max_tokens_per_minute=max_tokens_per_minute,
        max_adapters=max_adapters,
        max_adapter_bytes=max_adapter_bytes,
        max_rank=max_rank,
        max_host_bytes=max_host_bytes,
        max_device_bytes=max_device_bytes,
        soft_kv_share=soft_kv_share,
        hard_kv_share=hard_kv_share,
        allowed_ranks=_ranks(allowed_ranks),
        self_publish=self_publish,
        log_content=log_content,
    )
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
            _limit(t["max_adapters"]),
            _limit(t["max_adapter_bytes"]),
            ", ".join(t["keys"]) or "-",
            "suspended" if t["suspended"] else "active",
        ]
        for t in found
    ]
    columns = ["tenant", "weight", "max concurrent", "max queued", "max adapters", "max bytes"]
    show(found, as_json, table([*columns, "keys", "state"], rows))


@tenants_app.command("rotate-key")
def rotate_key(context: typer.Context, tenant: TenantId, as_json: Json = False) -> None:
    """Replace all keys of a tenant by a new one; the old ones end within two seconds."""
    with client(context) as service:
        answer = service.rotate_key(tenant)
    show(answer, as_json, f"The new key of {tenant}, shown this once:\n{answer['key']}")


def _fields(**given: Any) -> dict[str, Any]:
    """Those that were given; -1 of a limit that there may be none of is none."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name in LIMITS:
        if fields.get(name) == -1:
            fields[name] = None
    return fields


def _ranks(given: str | None) -> list[int] | None:
    if given is None:
        return None
    if given == "any":
        return []
    try:
        return [int(rank) for rank in given.split(",")]
    except ValueError:
        fail(f"{given!r} are no ranks. Write them as 8,16, or any.", USAGE)


def _limit(value: int | None) -> str:
    return "-" if value is None else str(value)
