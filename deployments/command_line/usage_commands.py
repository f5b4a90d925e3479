"""`loraplex usage`: what tenants have used."""

from __future__ import annotations

from typing import Annotated

import typer

from deployments.command_line.terminal import After, Json, Limit, client, show, size, table

COLUMNS = [
    "tenant",
    "sequences",
    "prompt tokens",
    "cached",
    "output tokens",
    "device s",
    "queue s",
    "loaded MiB",
    "host MiB h",
    "device MiB h",
]
HOUR_S = 3600


def add_to(app: typer.Typer) -> None:
    @app.command("usage")
    def usage(
        context: typer.Context,
        tenant: Annotated[str, typer.Argument(metavar="[TENANT]", help="Of this one.")] = "",
        limit: Limit = None,
        after: After = "",
        as_json: Json = False,
    ) -> None:
        """Tokens, device seconds and adapters' bytes by tenant, since there has been a service."""
        with client(context) as service:
            found = service.usage(tenant, limit, after)
        rows = [
            [
                u["tenant"],
                str(u["num_requests"]),
                str(u["prompt_tokens"]),
                str(u["cached_tokens"]),
                str(u["output_tokens"]),
                f"{u['device_s']:.1f}",
                f"{u['queue_s']:.1f}",
                size(u["loaded_bytes"]),
                size(int(u["host_byte_s"] / HOUR_S)),
                size(int(u["device_byte_s"] / HOUR_S)),
            ]
            for u in found
        ]
        show(found, as_json, table(COLUMNS, rows))
