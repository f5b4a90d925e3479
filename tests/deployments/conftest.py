"""An ingress with a registry of its own and scripted replicas, for the tests that talk to one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.ingress import InProcess, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World.build(tmp_path)
    yield world
    world.registry.close()


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """Tenant t1's client of `world`'s ingress, without a server between."""
    async with InProcess(world) as client:
        yield client
