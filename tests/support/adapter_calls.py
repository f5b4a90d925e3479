"""Calls about adapters over REST, and what they need."""

import asyncio

from tests.support.ingress import bearer

FORM = {"tenant": "t1", "name": "up"}
FILES = {
    "config": ("adapter_config.json", b'{"r": 8}'),
    "tensors": ("adapter_model.safetensors", b"s" * 3_000_000),
}


def flag(world, tenant, *flags):
    record = world.tenants.get(tenant)
    for name in flags:
        record = record.with_flag(name, True)
    world.registry.put(record.key, record.to_value(), None)


async def version_of(client, world, model, tenant="t1", **headers):
    """Which one answers; the status where none does."""
    answer = await client.post(
        "/v1/completions",
        json={"model": model, "prompt": "x"},
        headers={**bearer(world.keys[tenant]), **headers},
    )
    return answer.headers.get("x-loraplex-adapter-version") or answer.status_code


async def until_version(client, world, model, wanted):
    async with asyncio.timeout(60):
        while await version_of(client, world, model) != wanted:
            await asyncio.sleep(0.01)
