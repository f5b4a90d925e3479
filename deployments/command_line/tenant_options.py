"""What of a tenant the command line sets: each option is declared once, for every command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Protocol, get_type_hints

import typer

from deployments.command_line.terminal import USAGE, Json, fail

NONE = -1
"""Of a limit: there is none."""


class Options:
    """By the name of the record's field. None: not given."""

    weight: Annotated[float | None, typer.Option(help="Share of the service.")]
    max_concurrent: Annotated[int | None, typer.Option(help="Sequences in progress at once.")]
    max_queued: Annotated[int | None, typer.Option(help="Of those, without a first token.")]
    max_tokens_per_minute: Annotated[
        int | None, typer.Option(help="Tokens of prompts and answers a minute; -1: any number.")
    ]
    max_adapters: Annotated[int | None, typer.Option(help="Adapters it may have; -1: any number.")]
    max_adapter_bytes: Annotated[
        int | None, typer.Option(help="Stored bytes it may have; -1: any number.")
    ]
    max_rank: Annotated[int | None, typer.Option(help="Largest rank it may publish; -1: any.")]
    max_host_bytes: Annotated[
        int | None,
        typer.Option(help="Its adapters' bytes in a replica's host memory; -1: any number."),
    ]
    max_device_bytes: Annotated[
        int | None, typer.Option(help="Its adapters' bytes on a replica's device; -1: any number.")
    ]
    soft_kv_share: Annotated[
        float | None,
        typer.Option(help="Part of a replica's KV pages beyond which it borrows, 0 to 1; -1: any."),
    ]
    hard_kv_share: Annotated[
        float | None,
        typer.Option(help="Part of a replica's KV pages that it may have; -1: any."),
    ]
    allowed_ranks: Annotated[
        str | None, typer.Option(help="Ranks it may publish, as 8,16; any: any.")
    ]
    self_publish: Annotated[
        bool | None,
        typer.Option(
            "--self-publish/--no-self-publish",
            help="Whether its own key may change, warm and pin its adapters.",
        ),
    ]
    log_content: Annotated[
        bool | None,
        typer.Option(
            "--log-content/--no-log-content", help="Whether its prompts and answers are logged."
        ),
    ]


MAY_BE_NONE = (
    "max_tokens_per_minute",
    "max_adapters",
    "max_adapter_bytes",
    "max_rank",
    "max_host_bytes",
    "max_device_bytes",
    "soft_kv_share",
    "hard_kv_share",
)


class TenantCommand(Protocol):
    __doc__: str | None

    def __call__(
        self, context: typer.Context, tenant: str, fields: dict[str, Any], as_json: bool
    ) -> None: ...


def with_options(command: TenantCommand) -> Callable[..., None]:
    """`command` as typer reads it: TENANT, every one of `Options`, --json. It gets as `fields` what
    was given, as the REST body has it."""

    @wraps(command)
    def run(context: typer.Context, tenant: str, as_json: bool = False, **given: Any) -> None:
        command(context, tenant, _fields(given), as_json)

    hints = {
        "context": typer.Context,
        "tenant": Annotated[str, typer.Argument(metavar="TENANT")],
        **get_type_hints(Options, include_extras=True),
        "as_json": Json,
    }
    kind = inspect.Parameter.KEYWORD_ONLY
    defaults = {"context": inspect.Parameter.empty, "tenant": inspect.Parameter.empty}
    defaults["as_json"] = False  # type: ignore[assignment]
    parameters = [
        inspect.Parameter(name, kind, default=defaults.get(name), annotation=hint)
        for name, hint in hints.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = hints
    return run


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in given.items() if value is not None}
    for name in MAY_BE_NONE:
        if fields.get(name) == NONE:
            fields[name] = None
    if "allowed_ranks" in fields:
        fields["allowed_ranks"] = _ranks(fields["allowed_ranks"])
    return fields


def _ranks(given: str) -> list[int]:
    if given == "any":
        return []
    try:
        return [int(rank) for rank in given.split(",")]
    except ValueError:
        fail(f"{given!r} are no ranks. Write them as 8,16, or any.", USAGE)
