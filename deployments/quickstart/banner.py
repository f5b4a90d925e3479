"""What a person sees once the quickstart answers: where, with which keys, and how to ask."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deployments.quickstart.tenants import ADMIN, DEMO_TENANTS, DemoTenant

IDLE_GPU = (
    "This machine's NVIDIA GPU is not used: torch is a build without CUDA (`make clean`, then"
    " without TORCH_INDEX), or CUDA_VISIBLE_DEVICES hides it."
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is to tell. keys: by tenant and `admin`; devices: what the replicas that answered
    run on, as they say themselves; has_gpu: the machine has one that it could be; program: the
    `loraplex` command."""

    url: str
    keys: Mapping[str, str]
    base: str
    devices: Sequence[Mapping[str, Any]]
    dashboard: str | None
    import_root: Path | None
    program: Path
    has_gpu: bool = False


def show(console: Console, facts: Facts) -> None:
    """Print the endpoint, every key, and lines to copy: for curl, Python and the operator."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("tenant", "model", "key"):
        table.add_column(column, no_wrap=True)
    for demo in DEMO_TENANTS:
        table.add_row(demo.id, demo.model, facts.keys[demo.id])
    table.add_row("(operator)", "", facts.keys[ADMIN])
    console.print(f"\n[bold green]loraplex is ready[/] at {facts.url}/v1\n")
    console.print(table)
    console.print(f"\nEvery tenant may also ask for the base model, {facts.base}.")
    for device in facts.devices:
        console.print(described(device), highlight=False)
    if facts.has_gpu and all(device["kind"] == "cpu" for device in facts.devices):
        console.print(f"[yellow]{IDLE_GPU}[/]", highlight=False)
    if facts.dashboard:
        console.print(f"Ray's dashboard: {facts.dashboard}")
    demo = DEMO_TENANTS[0]
    parts = [
        ("With curl:", curl(facts.url, facts.keys[demo.id], demo)),
        ("With the openai package:", snippet(facts.url, facts.keys[demo.id], demo)),
    ]
    if facts.import_root is not None:
        title = f"As the operator, with a PEFT folder `mine` below {facts.import_root}:"
        parts.append((title, publish(facts, demo)))
    for title, text in parts:
        console.print(f"\n{title}\n", style="bold", highlight=False)
        # Plainly, so that a line is never wrapped and a bracket is never markup.
        console.out(text, highlight=False)
    console.print("\nCtrl-C stops everything.")


def described(device: Mapping[str, Any]) -> str:
    """A line of one replica's device."""
    memory = device["memory"]
    name = device["kind"] if memory is None else f"{device['kind']} ({memory['device']})"
    return (
        f"A replica on {name}, {device['dtype']}: core ready after {device['startup_s']:.0f} s,"
        f" an arena of {device['arena_bytes'] / 2**30:.1f} GiB."
    )


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


def publish(facts: Facts, demo: DemoTenant) -> str:
    return (
        f"export LORAPLEX_URL={facts.url} LORAPLEX_ADMIN_KEY={facts.keys[ADMIN]}\n"
        f"{facts.program} adapters publish {demo.id}/mine mine"
    )
