"""What all groups of commands share: the client, what is printed, and how a command ends.

Exit codes: 0 done, 1 the service refused, 2 wrong usage, 3 the service can't be reached.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from typer.core import TyperGroup

from deployments.command_line.admin_client import AdminClient, Refused, Unreachable, Unusable
from deployments.config import ClientConfig
from deployments.rest.strict_json import is_text

REFUSED, USAGE, UNREACHABLE = 1, 2, 3
CODES = {REFUSED: "refused", USAGE: "wrong_usage", UNREACHABLE: "unreachable"}

WIDEST = 100_000
"""Of a table that is not for a terminal, in characters."""

Json = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
Limit = Annotated[
    int | None, typer.Option(help="Only so many; the rest follows with --after.", min=1, max=1000)
]
After = Annotated[str, typer.Option(help="Only what is listed behind this one.")]


@contextmanager
def client(context: typer.Context) -> Iterator[AdminClient]:
    config: ClientConfig = context.obj
    if not config.admin_key:
        fail("No admin key. Give --admin-key or set LORAPLEX_ADMIN_KEY.", USAGE)
    try:
        opened = AdminClient(config)
        try:
            yield opened
        finally:
            opened.close()
    except Refused as error:
        fail(str(error), REFUSED, error.body)
    except Unreachable as error:
        fail(str(error), UNREACHABLE)
    except Unusable as error:
        fail(str(error), USAGE)


@contextmanager
def progress(what: str, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, to be told (bytes so far, bytes in all); nothing where stderr is no
    terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def split_adapter(adapter: str) -> tuple[str, str]:
    """(tenant, name)."""
    tenant, _, name = adapter.partition("/")
    if not tenant or not name or "/" in name:
        fail(f"{adapter!r} is not TENANT/NAME.", USAGE)
    return tenant, name


class CommandFailed(Exception):
    """Ends a command. code: its exit code. error: the service's own, whole."""

    def __init__(self, message: str, code: int, error: Mapping[str, Any] | None) -> None:
        super().__init__(message)
        self.code = code
        self.error = error


def fail(message: str, code: int, error: Mapping[str, Any] | None = None) -> NoReturn:
    raise CommandFailed(message, code, error)


class Commands(TyperGroup):
    """The outermost group: tells on stderr why a command failed, with --json as {"error": ...}."""

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args
        try:
            _refuse_bytes([*ctx.args, *ctx.params.values()])
            return super().invoke(ctx)
        except CommandFailed as failed:
            _tell(str(failed), failed.code, failed.error, as_json)
            raise typer.Exit(failed.code) from None
        except Exception as error:  # a wrong usage, which the library would tell in a box of text
            if not as_json or not hasattr(error, "format_message"):
                raise
            _tell(error.format_message(), USAGE, None, as_json)
            raise typer.Exit(USAGE) from None


def _refuse_bytes(arguments: Sequence[object]) -> None:
    """What isn't UTF-8 reaches a program as halves of surrogate pairs, which nothing can send."""
    for argument in arguments:
        if isinstance(argument, str) and not is_text(argument):
            told = argument.encode(errors="surrogateescape").decode(errors="backslashreplace")
            fail(f"The argument {told} is not UTF-8. Write it in UTF-8.", USAGE)


def _tell(message: str, code: int, error: Mapping[str, Any] | None, as_json: bool) -> None:
    if as_json:
        own = {"message": message, "type": "client_error", "param": None, "code": CODES[code]}
        typer.echo(json.dumps({"error": error or own}, indent=2), err=True)
    else:
        Console(stderr=True).print(f"error: {message}", style="red", markup=False, soft_wrap=True)


def warn(warnings: list[str]) -> None:
    for warning in warnings:
        Console(stderr=True).print(f"note: {warning}", markup=False, soft_wrap=True)


def show(answer: Any, as_json: bool, otherwise: str | Table) -> None:
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    elif isinstance(otherwise, Table):
        print_table(otherwise)
    else:
        typer.echo(otherwise)


def print_table(made: Table) -> None:
    """As wide as the terminal; where it goes to a file or a program, as wide as it is."""
    console = Console(markup=False)
    if not console.is_terminal:
        console.width = WIDEST
    console.print(made)


def table(columns: list[str], rows: list[list[str]]) -> Table:
    """Nothing is ever cut: what a column has no room for goes on in its next line."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.2f}"
