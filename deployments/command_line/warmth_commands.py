"""`loraplex adapters prefetch`, `pin`, `unpin`, `pins`: what is kept near, and what is warmed."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deployments.command_line.terminal import (
    REFUSED,
    USAGE,
    Json,
    client,
    fail,
    show,
    size,
    split_adapter,
    table,
)

POLL_S = 0.5
TIERS = ("device", "host")

Adapter = Annotated[str, typer.Argument(metavar="TENANT/NAME")]
TierName = Annotated[str, typer.Option("--tier", help="device, or host memory: host.")]
Owners = Annotated[str, typer.Option("--replicas", help="owner, all, or how many of its owners.")]
WaitS = Annotated[
    float, typer.Option("--wait", help="Seconds until it must be there; 0: ask once.")
]


def add_to(app: typer.Typer) -> None:
    """The commands become part of the group `loraplex adapters`."""
    for name, command in (
        ("prefetch", prefetch),
        ("pin", pin),
        ("unpin", unpin),
        ("pins", list_pins),
    ):
        app.command(name)(command)


def prefetch(
    context: typer.Context,
    adapter: Adapter,
    tier: TierName = "device",
    replicas: Owners = "owner",
    wait_s: WaitS = 120.0,
    as_json: Json = False,
) -> None:
    """Bring an adapter near before its requests come: a warm-up before a campaign."""
    tenant, name = split_adapter(adapter)
    fields = _fields(tier, replicas)
    until_s = time.monotonic() + wait_s
    with client(context) as service, _bar(hidden=as_json) as bar:
        answer = service.prefetch(tenant, name, **fields)
        task = bar.add_task(f"{adapter} to the {tier}", total=answer["num_replicas"])
        while not answer["done"] and not _failures(answer) and time.monotonic() < until_s:
            bar.update(task, completed=answer["num_there"])
            time.sleep(POLL_S)
            answer = service.prefetch(tenant, name, **fields, retry=False)
    places = ", ".join(f"{p['tier']} on replica {p['slot']}" for p in answer["replicas"])
    show(answer, as_json, f"{adapter}: {places}.")
    if failures := _failures(answer):
        fail(failures[0], REFUSED)
    if not answer["done"] and wait_s:
        fail(f"It is not there on every replica after {wait_s:g} s.", REFUSED)


def pin(
    context: typer.Context,
    adapter: Adapter,
    tier: TierName = "device",
    replicas: Owners = "owner",
    as_json: Json = False,
) -> None:
    """Keep an adapter in a tier, whether requests come or not, within the budget of pins."""
    tenant, name = split_adapter(adapter)
    with client(context) as service:
        answer = service.pin(tenant, name, **_fields(tier, replicas))
    show(answer, as_json, f"Pinned {adapter}: {size(answer['num_bytes'])} MiB.")


def unpin(context: typer.Context, adapter: Adapter, as_json: Json = False) -> None:
    """Keep an adapter no longer; it goes when its room is needed."""
    tenant, name = split_adapter(adapter)
    with client(context) as service:
        answer = service.unpin(tenant, name)
    show(answer, as_json, f"Unpinned {adapter}.")


def list_pins(context: typer.Context, as_json: Json = False) -> None:
    """List what is pinned."""
    with client(context) as service:
        found = service.pins()
    rows = [
        [p["model"], p["tier"], str(p["replicas"]), size(p["num_bytes"]), p["by"]] for p in found
    ]
    show(found, as_json, table(["adapter", "tier", "replicas", "MiB", "by"], rows))


def _bar(hidden: bool) -> Progress:
    """On stderr; nothing where that is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("replicas"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    )


def _fields(tier: str, replicas: str) -> dict[str, Any]:
    if tier not in TIERS:
        fail(f"{tier!r} is no tier. Use device or host.", USAGE)
    if replicas in ("owner", "all"):
        return {"tier": tier, "replicas": replicas}
    if not replicas.isdigit() or not int(replicas):
        fail(f"{replicas!r}: use owner, all, or a number of replicas.", USAGE)
    return {"tier": tier, "replicas": int(replicas)}


def _failures(answer: dict[str, Any]) -> list[str]:
    return [p["why"] for p in answer["replicas"] if p["tier"] == "failed"]
