"""Calls about adapters over REST, and what they need."""

from __future__ import annotations

import asyncio

import httpx

from tests.support.ingress import World, bearer

FORM = {"tenant": "t1", "name": "up"}
FILES = {
    "config": ("adapter_config.json", b'{"r": 8}'),
    "tensors": ("adapter_model.safetensors", b"s" * 3_000_000),
}


def flag(world: World, tenant: str, *flags: str) -> None:
    record = world.tenants.get(tenant)
    for name in flags:
        record = record.with_flag(name, True)
    world.registry.put(record.key, record.to_value(), None)


async def version_of(
    client: httpx.AsyncClient, world: World, model: str, tenant: str = "t1", **headers: str
) -> str | int:
    """Which one answers; the status where none does."""
    answer = await client.post(
        "/v1/completions",
        json={"model": model, "prompt": "x"},
        headers={**bearer(world.keys[tenant]), **headers},
    )
    return answer.headers.get("x-loraplex-adapter-version") or answer.status_code


async def until_version(
    client: httpx.AsyncClient, world: World, model: str, wanted: str | int
) -> None:
    async with asyncio.timeout(60):
        while await version_of(client, world, model) != wanted:
            await asyncio.sleep(0.01)
