"""An ingress's copy of a registry on Redis: new names in two polls, old ones come what may."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import pytest

from deployments.ingress.catalog import Catalog
from deployments.registry import open_registry
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import adapter_key
from deployments.registry.version_record import VersionRecord
from engine.errors import NotFound, Unavailable
from engine.types import AdapterRef
from tests.support.polls import Polls
from tests.support.redis_servers import server


def publish(registry, tenant, name, digest="a" * 64):
    """Makes a version the current one; answers its ref."""
    ref = AdapterRef(tenant, name, digest, "r", (8,), 1024, 4096, f"adapters/{tenant}/{digest}")
    version = VersionRecord(ref, 5.0, "test", "tiny", None, ("layers.*.self_attn.q_proj",), 4)
    entry = registry.get(adapter_key(tenant, name))
    record = AdapterRecord(tenant, name) if entry is None else AdapterRecord.from_value(entry.value)
    record = record.with_version(version).promoted(digest)
    registry.put(record.key, record.to_value(), None)
    return ref


@pytest.fixture
def redis_alone(tmp_path):
    with server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as one:
        yield one


@contextlib.asynccontextmanager
async def following(*catalogs):
    for catalog in catalogs:
        await catalog.refresh()
    tasks = [asyncio.create_task(catalog.run()) for catalog in catalogs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def effective(true):
    async with asyncio.timeout(60):
        while not await true():
            await asyncio.sleep(0.02)


async def test_names_are_effective_on_every_ingress_within_two_polls(redis_alone):
    writer = open_registry(redis_alone.url)
    registries = [Polls(open_registry(redis_alone.url)) for _ in range(3)]
    ref = publish(writer, "t1", "bot")
    catalogs = [Catalog(r, clock=time.monotonic) for r in registries]
    async with following(*catalogs):
        for catalog in catalogs:
            assert await catalog.resolve("bot", "t1") == ref
        newer = publish(writer, "t1", "bot", digest="b" * 64)
        assert newer != ref

        for one in registries:
            await one.two()
        assert [await catalog.resolve("bot", "t1") for catalog in catalogs] == [newer] * 3
    for registry in (writer, *registries):
        registry.close()


async def test_known_names_serve_through_an_outage_and_what_came_meanwhile_follows(redis_alone):
    registry = open_registry(f"{redis_alone.url}?timeout_s=0.3&confirm_s=0.3")
    writer = open_registry(redis_alone.url)
    ref = publish(writer, "t1", "bot")
    catalog = Catalog(registry, clock=time.monotonic, negative_ttl_s=0.1)
    async with following(catalog):
        redis_alone.kill()
        await asyncio.sleep(0.5)
        assert await catalog.resolve("bot", "t1") == ref
        with pytest.raises(Unavailable):  # not NotFound: nobody knows
            await catalog.resolve("other", "t1")
        redis_alone.start()
        publish(writer, "t1", "other")

        async def is_there():
            with contextlib.suppress(NotFound, Unavailable):
                return (await catalog.resolve("other", "t1")).name == "other"
            return False

        await effective(is_there)
        redis_alone.freeze()
        await asyncio.sleep(0.5)
        assert await catalog.resolve("bot", "t1") == ref
        redis_alone.thaw()
        redis_alone.client().flushall()

        async def is_gone():
            with contextlib.suppress(Unavailable):
                try:
                    await catalog.resolve("bot", "t1")
                except NotFound:
                    return True
            return False

        await effective(is_gone)
    for one in (registry, writer):
        one.close()


async def test_one_name_published_again_and_again_takes_no_more_keys(redis_alone):
    registry = open_registry(redis_alone.url)
    publish(registry, "t1", "bot")
    entry = registry.get("adapter/t1/bot")
    record = AdapterRecord.from_value(entry.value)
    for number in range(500):
        version = replace(record.versions[0], published_s=float(number))
        registry.put(entry.key, replace(record, versions=(version,)).to_value(), None)
    names = set(redis_alone.client().keys())
    assert names == {f"{{loraplex}}:{name}" for name in ("state", "entries", "order", "feed")}
    registry.check()
    registry.close()
