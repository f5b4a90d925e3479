"""`loraplex adapters`: publish, name, look at and retire adapters."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from deployments.command_line.canary_lines import canary_lines
from deployments.command_line.terminal import (
    USAGE,
    After,
    Json,
    Limit,
    client,
    fail,
    print_table,
    progress,
    show,
    size,
    split_adapter,
    table,
    warn,
)

FILES = ("adapter_config.json", "adapter_model.safetensors")
adapters_app = typer.Typer(no_args_is_help=True, help="Publish, name, look at and retire adapters.")

Adapter = Annotated[str, typer.Argument(metavar="TENANT/NAME")]
Version = Annotated[
    str, typer.Argument(help="The beginning of a digest (8 characters or more), or an alias.")
]
As = Annotated[str, typer.Option("--as", help="The alias: production, canary, or one of yours.")]
Expect = Annotated[
    str | None, typer.Option(help="Only if the alias stands for this digest until now.")
]
Weight = Annotated[float | None, typer.Option(help="With --as canary: its share, 0 to 1.")]
Gate = Annotated[
    bool | None,
    typer.Option("--gate/--no-gate", help="With --as canary: whether it ends by itself if worse."),
]


@adapters_app.command("publish")
def publish(
    context: typer.Context,
    adapter: Adapter,
    folder: Annotated[
        str | None, typer.Argument(help="A PEFT folder below the service's import root.")
    ] = None,
    upload: Annotated[
        Path | None, typer.Option(help="Or a PEFT folder of this machine.", file_okay=False)
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Or a prefix below imports/TENANT/ of the import store.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Assert that the adapter was trained on this base.")
    ] = None,
    alias: As = "production",
    weight: Weight = None,
    gate: Gate = None,
    promote: Annotated[
        bool, typer.Option("--promote/--no-promote", help="Give it that name, or none.")
    ] = True,
    probe: Annotated[
        list[str] | None, typer.Option(help="A prompt it must answer first. Repeatable.")
    ] = None,
    probes: Annotated[
        Path | None,
        typer.Option(help='JSON: [{"prompt", "max_tokens", "expect"}].', dir_okay=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish a PEFT folder as the new version of TENANT/NAME."""
    tenant, name = split_adapter(adapter)
    if sum(source is not None for source in (folder, upload, prefix)) != 1:
        fail("Give one of FOLDER, --upload and --prefix.", USAGE)
    fields: dict[str, Any] = {"tenant": tenant, "name": name, "promote": promote}
    if promote or alias != "production":
        fields["as"] = alias
    asked = [{"prompt": text} for text in probe or ()] + _read_probes(probes)
    optional = {"weight": weight, "gate": gate, "base": base, "probes": asked or None}
    fields |= {key: value for key, value in optional.items() if value is not None}
    with client(context) as service:
        if upload is not None:
            with progress("uploading", as_json) as told:
                answer = service.upload(upload, told, **fields)
        else:
            source = {"folder": folder} if folder is not None else {"prefix": prefix}
            answer = service.publish(**fields, **source)
    version = next(v for v in answer["versions"] if v["digest"] == answer["version"])
    show(answer, as_json, f"Published {answer['model']} as {version['digest'][:12]}.")
    if not as_json:
        for asked_one in version["probes"]:
            typer.echo(f"{asked_one['prompt']!r} -> {asked_one['answer']!r}")
    warn(version["warnings"])


@adapters_app.command("list")
def list_adapters(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    limit: Limit = None,
    after: After = "",
    as_json: Json = False,
) -> None:
    """List adapters and where they are."""
    with client(context) as service:
        found = service.adapters(tenant, limit, after)
    rows = [
        [
            a["model"],
            a["status"],
            (a["digest"] or "-")[:12],
            _canary(a),
            _ranks(a),
            str(len(a["versions"])),
            _places(a),
        ]
        for a in found
    ]
    columns = ["adapter", "status", "digest", "canary", "ranks", "versions", "where"]
    show(found, as_json, table(columns, rows))


@adapters_app.command("show")
def show_adapter(context: typer.Context, adapter: Adapter, as_json: Json = False) -> None:
    """Show one adapter: its versions, where it is, and why it failed if it did."""
    tenant, name = split_adapter(adapter)
    with client(context) as service:
        found = service.adapter(tenant, name)
    columns = ["digest", "ranks", "MiB", "published", "by", "base", "state"]
    rows = [_version_row(v, _names(found, v["digest"])) for v in found["versions"]]
    show(found, as_json, f"{found['model']}: {found['status']}. {_places(found)}".rstrip())
    if not as_json:
        print_table(table(columns, rows))
        for told in canary_lines(found):
            typer.echo(told)
        warn([w for v in found["versions"] for w in v["warnings"]])
        warn([p["why"] for p in found["replicas"] if p["why"]])


@adapters_app.command("promote")
def promote_version(
    context: typer.Context,
    adapter: Adapter,
    version: Version,
    alias: As = "production",
    weight: Weight = None,
    gate: Gate = None,
    expect: Expect = None,
    as_json: Json = False,
) -> None:
    """Make an alias of TENANT/NAME stand for VERSION, on every ingress within two seconds."""
    tenant, name = split_adapter(adapter)
    optional = {"weight": weight, "gate": gate, "expect": expect}
    fields = {key: value for key, value in optional.items() if value is not None}
    with client(context) as service:
        answer = service.promote(tenant, name, version=version, **{"as": alias}, **fields)
    show(answer, as_json, _stands(answer, alias))


@adapters_app.command("rollback")
def roll_back(
    context: typer.Context,
    adapter: Adapter,
    alias: As = "production",
    expect: Expect = None,
    as_json: Json = False,
) -> None:
    """Make an alias of TENANT/NAME stand for what it stood for before; end a canary."""
    tenant, name = split_adapter(adapter)
    fields = {} if expect is None else {"expect": expect}
    with client(context) as service:
        answer = service.roll_back(tenant, name, **{"as": alias}, **fields)
    show(answer, as_json, _stands(answer, alias))


@adapters_app.command("remove-alias")
def remove_alias(
    context: typer.Context,
    adapter: Adapter,
    alias: Annotated[str, typer.Argument()],
    as_json: Json = False,
) -> None:
    """Remove an alias of TENANT/NAME. Its version stays."""
    tenant, name = split_adapter(adapter)
    with client(context) as service:
        answer = service.remove_alias(tenant, name, alias)
    show(answer, as_json, f"Removed {answer['model']}@{alias}.")


@adapters_app.command("retire")
def retire(
    context: typer.Context,
    adapter: Adapter,
    version: Annotated[str | None, typer.Option(help="Only this version.")] = None,
    now: Annotated[
        bool, typer.Option("--now", help="End its running requests too, with an error.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take TENANT/NAME out of service. Requests in progress end as they began."""
    tenant, name = split_adapter(adapter)
    with client(context) as service:
        answer = service.retire(tenant, name, version, now)
    what = answer["model"] if version is None else f"{version} of {answer['model']}"
    show(answer, as_json, f"Retired {what}.")
    if not as_json:
        shared = [d[:12] for d in answer["shared"]]
        warn([f"{d} is served under another name too and goes on there." for d in shared])


@adapters_app.command("download")
def download(
    context: typer.Context,
    adapter: Adapter,
    folder: Annotated[Path, typer.Argument(help="Made if it isn't there.", file_okay=False)],
    version: Annotated[
        str, typer.Option(help="The beginning of a digest, or an alias.")
    ] = "production",
    as_json: Json = False,
) -> None:
    """Fetch the stored files of a version of TENANT/NAME into FOLDER."""
    tenant, name = split_adapter(adapter)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{folder} can't be made: {error.strerror}.", USAGE)
    with client(context) as service:
        for file in FILES:
            with progress(file, as_json) as told:
                service.download(tenant, name, version, file, folder / file, told)
    answer = {"object": "download", "files": [str(folder / file) for file in FILES]}
    show(answer, as_json, f"Fetched {tenant}/{name}@{version} into {folder}.")


def _read_probes(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        fail(f"{path} can't be read: {error}.", USAGE)
    if not isinstance(found, list):
        fail(f"{path} holds no list of probes.", USAGE)
    return found


def _stands(adapter: dict[str, Any], alias: str) -> str:
    of = adapter["aliases"].get("production" if alias == "canary" else alias)
    if alias != "canary":
        return f"{adapter['model']}@{alias} stands for {of['digest'][:12]}."
    if of is None or of["canary"] is None:
        return f"{adapter['model']} has no canary."
    return f"{of['canary'][:12]} gets {of['weight']:.1%} of {adapter['model']}."


def _canary(adapter: dict[str, Any]) -> str:
    of = adapter["aliases"].get("production")
    if of is None or of["canary"] is None:
        return "-"
    return f"{of['canary'][:12]} {of['weight']:.1%}"


def _names(adapter: dict[str, Any], digest: str) -> str:
    names = [n for n, a in adapter["aliases"].items() if a["digest"] == digest]
    names += [
        "canary" if n == "production" else f"{n}'s canary"
        for n, a in adapter["aliases"].items()
        if a["canary"] == digest
    ]
    return ", ".join(names)


def _ranks(adapter: dict[str, Any]) -> str:
    current = [v for v in adapter["versions"] if v["digest"] == adapter["digest"]]
    return ",".join(str(r) for r in current[0]["ranks"]) if current else "-"


def _places(adapter: dict[str, Any]) -> str:
    return ", ".join(f"{p['tier']} on replica {p['slot']}" for p in adapter["replicas"])


def _version_row(version: dict[str, Any], names: str) -> list[str]:
    published = datetime.fromtimestamp(version["published_s"], UTC)
    base = version["base"] + (" (asserted)" if version["asserted_by"] else "")
    return [
        version["digest"][:12],
        ",".join(str(r) for r in version["ranks"]),
        size(version["num_bytes"]),
        f"{published:%Y-%m-%d %H:%M:%S}Z",
        version["by"],
        base,
        names or ("kept" if version["retired_s"] is None else "retired"),
    ]
