"""An admin's client, and an adapter with two versions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from deployments.registry.adapter_record import AdapterRecord
from tests.support.ingress import InProcess, World, bearer
from tests.support.memory_control import put_version


@pytest.fixture
async def admin(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        yield client


@pytest.fixture
def two(world: World) -> list[str]:
    """t1/two with two whole versions, the second in production."""
    record = AdapterRecord("t1", "two")
    versions = [put_version(world.store, "t1", "two", m) for m in (b"one", b"two")]
    for version in versions:
        record = record.with_version(version).promoted(version.ref.digest)
    world.registry.put(record.key, record.to_value(), None)
    return [v.ref.digest for v in versions]
