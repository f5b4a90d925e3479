"""What a person sees once the quickstart answers: where, with which keys, and how to ask."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from deployments.quickstart.tenants import ADMIN, DEMO_TENANTS, DemoTenant


def show(
    console: Console, url: str, keys: Mapping[str, str], base: str, dashboard: str | None
) -> None:
    """Print the endpoint, every key, a curl line and an `openai` snippet to copy."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("tenant", "model", "key"):
        table.add_column(column, no_wrap=True)
    for demo in DEMO_TENANTS:
        table.add_row(demo.id, demo.model, keys[demo.id])
    table.add_row("(operator)", "/v1/adapters", keys[ADMIN])
    console.print(f"\n[bold green]loraplex is ready[/] at {url}/v1\n")
    console.print(table)
    console.print(f"\nEvery tenant may also ask for the base model, {base}.")
    if dashboard:
        console.print(f"Ray's dashboard: {dashboard}")
    demo = DEMO_TENANTS[0]
    for title, text in (
        ("With curl:", curl(url, keys[demo.id], demo)),
        ("With the openai package:", snippet(url, keys[demo.id], demo)),
    ):
        console.print(f"\n[bold]{title}[/]\n")
        # Plainly, so that a line is never wrapped and a bracket is never markup.
        console.out(text, highlight=False)
    console.print("\nCtrl-C stops everything.")


def curl(url: str, key: str, demo: DemoTenant) -> str:
    body = {"model": demo.model, "messages": [{"role": "user", "content": demo.prompt}]}
    return (
        f"curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' "
        f"-H 'Content-Type: application/json' \\\n  -d '{json.dumps(body)}'"
    )


def snippet(url: str, key: str, demo: DemoTenant) -> str:
    return (
        "from openai import OpenAI\n"
        f'client = OpenAI(base_url="{url}/v1", api_key="{key}")\n'
        "answer = client.chat.completions.create(\n"
        f'    model="{demo.model}",\n'
        f'    messages=[{{"role": "user", "content": {json.dumps(demo.prompt)}}}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )
