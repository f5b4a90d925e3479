"""The local copy of the registry: what it resolves, how fast it follows, what it survives."""

import asyncio
import threading
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import pytest

from deployments.changes.tenants import Tenants
from deployments.ingress.catalog import PAGE, SLICE, Catalog
from deployments.ingress.directory import Directory
from deployments.registry import open_registry
from deployments.registry.alias import position
from deployments.registry.records import (
    KeyRecord,
    Role,
    TenantRecord,
    hash_key,
    key_key,
    tenant_key,
)
from deployments.registry.registry import Event
from engine.errors import Conflict, NotFound, PermissionDenied, Unauthenticated
from tests.support.memory_control import publish
from tests.support.watched_registry import Watched


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def registry(tmp_path):
    registry = open_registry(f"sqlite://{tmp_path}/registry.db")
    yield registry
    registry.close()


@pytest.fixture
def watched(registry):
    return Watched(registry)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def catalog(watched, clock):
    return Catalog(watched, clock=clock, poll_s=0.01)


@pytest.fixture
def tenants(registry):
    numbers = iter(range(1000))
    return Tenants(registry, clock=lambda: 5.0, random_bytes=lambda n: next(numbers).to_bytes(n))


async def test_names_resolve_to_versions(catalog, registry):
    publish(registry, "t1", "bot", digest="a" * 64)
    publish(registry, "t1", "bot", digest="b" * 64)
    await catalog.refresh()
    for model in ("bot", "t1/bot", "bot@bbbbbbbb", "t1/bot@" + "b" * 64):
        assert (await catalog.resolve(model, "t1")).digest == "b" * 64
    assert (await catalog.resolve("bot@aaaaaaaa", "t1")).digest == "a" * 64
    for model in ("bot@aaaaaaa", "bot@cccccccc", "bot@AAAAAAAA", "bot@", "bot@@", "bot@a/b"):
        with pytest.raises(NotFound):
            await catalog.resolve(model, "t1")


async def test_many_changes_at_once_leave_the_loop_to_others(catalog, registry):
    await catalog.refresh()
    for number in range(5 * SLICE):
        publish(registry, "t1", f"a{number}")
    known = [0]

    async def watch():
        while True:
            known.append(len(list(catalog.adapters("t1"))))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await catalog.refresh()
    watching.cancel()
    assert len(list(catalog.adapters("t1"))) == 5 * SLICE
    assert max(b - a for a, b in pairwise(known)) <= SLICE < max(known)


async def test_an_ambiguous_version_is_not_found(catalog, registry):
    publish(registry, "t1", "bot", digest="a" * 63 + "0")
    publish(registry, "t1", "bot", digest="a" * 63 + "1")
    await catalog.refresh()
    with pytest.raises(NotFound):
        await catalog.resolve("bot@aaaaaaaa", "t1")


async def test_retired_names_and_versions_are_not_found(catalog, registry):
    record = publish(registry, "t1", "bot")
    registry.put(record.key, record.retired(9.0, "me").to_value(), None)
    await catalog.refresh()
    for model in ("bot", "bot@aaaaaaaa"):
        with pytest.raises(NotFound):
            await catalog.resolve(model, "t1")
    publish(registry, "t1", "bot", digest="b" * 64)
    await catalog.refresh()
    assert (await catalog.resolve("bot", "t1")).digest == "b" * 64


async def test_what_is_new_is_looked_up_once(catalog, watched, registry):
    await catalog.refresh()
    publish(registry, "t1", "bot")
    assert (await catalog.resolve("bot", "t1")).name == "bot"
    assert (await catalog.resolve("bot", "t1")).name == "bot"
    assert watched.gets == 1


async def test_absence_is_remembered_for_a_second(catalog, watched, clock):
    await catalog.refresh()
    for _ in range(5):
        with pytest.raises(NotFound):
            await catalog.resolve("nosuch", "t1")
    assert watched.gets == 1
    clock.now += 1.01
    with pytest.raises(NotFound):
        await catalog.resolve("nosuch", "t1")
    assert watched.gets == 2


async def test_a_change_ends_a_remembered_absence(catalog, registry):
    await catalog.refresh()
    with pytest.raises(NotFound):
        await catalog.resolve("bot", "t1")
    publish(registry, "t1", "bot")
    await catalog.refresh()
    assert (await catalog.resolve("bot", "t1")).name == "bot"


@pytest.mark.parametrize("model", ["t2/bot", "../bot", "T1/bot", "x" * 64, "", "/", "@"])
async def test_no_odd_or_foreign_name_reaches_the_registry(catalog, watched, registry, model):
    publish(registry, "t2", "bot")
    with pytest.raises(NotFound, match="does not exist or you do not have access"):
        await catalog.resolve(model, "t1")
    assert watched.gets == 0


async def test_keys(catalog, tenants, registry):
    _, key = tenants.create(TenantRecord("t1", weight=3.0))
    admin = tenants.create_admin_key()
    await catalog.refresh()
    caller = await catalog.caller(key)
    assert caller.as_tenant().weight == 3.0
    assert (await catalog.caller(admin)).as_admin().tenant is None
    with pytest.raises(PermissionDenied):
        caller.as_admin()
    for wrong in ("lp-nosuch", key + "x", ""):
        with pytest.raises(Unauthenticated, match="unknown or was revoked"):
            await catalog.caller(wrong)
    registry.delete("tenant/t1", None)
    await catalog.refresh()
    with pytest.raises(Unauthenticated):
        await catalog.caller(key)


async def test_a_whole_listing_is_read_beside_the_loop(registry, clock):
    class Telling(dict):
        """A record that tells who reads it."""

        readers: ClassVar[set[int]] = set()

        def get(self, *args):
            self.readers.add(threading.get_ident())
            return super().get(*args)

    class TellingRegistry(Watched):
        def list(self, prefix, **page):
            listing = super().list(prefix, **page)
            entries = [replace(e, value=Telling(e.value)) for e in listing.entries]
            return replace(listing, entries=tuple(entries))

    publish(registry, "t1", "bot")
    catalog = Catalog(TellingRegistry(registry), clock=clock)
    await catalog.refresh()
    assert (await catalog.resolve("bot", "t1")).name == "bot"
    assert Telling.readers and threading.get_ident() not in Telling.readers


async def test_a_listing_of_many_pages_is_read_whole(registry, clock):
    registry.restore((f"x/{n:05}", {}) for n in range(2 * PAGE))
    publish(registry, "t1", "bot")
    publish(registry, "t2", "bot")
    listings = []

    class Counting(Watched):
        def list(self, prefix, **page):
            listings.append(page)
            if len(listings) == 2:  # changed behind the reader's back
                registry.put("tenant/a", TenantRecord("a").to_value(), None)
                registry.delete("adapter/t1/bot", None)
            return super().list(prefix, **page)

    catalog = Catalog(Counting(registry), clock=clock)
    await catalog.refresh()
    assert len(listings) == 3
    assert [r.tenant for r in catalog.adapters()] == ["t1", "t2"]
    await catalog.refresh()
    assert [r.tenant for r in catalog.adapters()] == ["t2"]
    assert catalog._directory.tenant("tenant/a").id == "a"


async def test_only_the_role_makes_an_admin(catalog, registry):
    record = KeyRecord(hash_key("lp-x"), Role.TENANT, None, "lp-x...", 5.0)
    registry.put(record.key, record.to_value(), None)
    await catalog.refresh()
    with pytest.raises(Unauthenticated):
        await catalog.caller("lp-x")


async def test_a_key_made_elsewhere_works_at_once_and_a_rotated_one_after_a_poll(catalog, tenants):
    await catalog.refresh()
    _, old = tenants.create(TenantRecord("t1"))
    await catalog.caller(old)
    new = tenants.rotate_key("t1")
    await catalog.caller(new)
    await catalog.refresh()
    with pytest.raises(Unauthenticated):
        await catalog.caller(old)
    assert [v.keys for v in tenants.views()[0]] == [(new[:7] + "...",)]
    with pytest.raises(NotFound):
        tenants.rotate_key("t2")
    with pytest.raises(Conflict):
        tenants.create(TenantRecord("t1"))
    assert (await catalog.caller(new)).tenant.id == "t1"


async def test_polling_follows_and_survives_the_registry(catalog, watched, registry):
    await catalog.refresh()
    polling = asyncio.create_task(catalog.run())
    watched.away = True
    publish(registry, "t1", "bot")
    async with asyncio.timeout(60):
        while watched.refused < 3:
            await asyncio.sleep(0.005)
    assert list(catalog.adapters("t1")) == []
    watched.away = False
    async with asyncio.timeout(60):
        while not list(catalog.adapters("t1")):
            await asyncio.sleep(0.005)
    polling.cancel()


async def test_a_forgotten_feed_is_listed_again(catalog, watched, registry):
    publish(registry, "t1", "bot")
    publish(registry, "t1", "other")
    await catalog.refresh()
    registry.delete("adapter/t1/other", None)
    watched.forgets = True
    await catalog.refresh()
    assert [r.name for r in catalog.adapters()] == ["bot"]


async def test_a_record_that_cannot_be_read_holds_up_no_other(catalog, registry, tenants):
    registry.put("adapter/t1/future", {"v": 99}, None)
    registry.put("alias/t1/x", {"v": 1}, None)
    publish(registry, "t1", "bot")
    await catalog.refresh()
    assert [r.name for r in catalog.adapters()] == ["bot"]
    registry.put("adapter/t1/bot", {"v": 99}, None)
    await catalog.refresh()
    with pytest.raises(NotFound):
        await catalog.resolve("bot", "t1")


def test_the_directory_keeps_the_newest_of_each_key(registry):
    directory = Directory()
    record = publish(registry, "t1", "bot")
    newer = record.retired(9.0, "me")
    directory.apply(Event(record.key, newer.to_value(), 5))
    directory.apply(Event(record.key, record.to_value(), 4))
    assert directory.adapter("t1", "bot").status == "retired"
    directory.check()
    directory.apply(Event(record.key, None, 6))
    assert directory.adapter("t1", "bot") is None
    directory.check()


def test_a_tenant_s_next_key_copies_no_hint_of_the_others():
    directory, kept = Directory(), None
    for number in range(3):
        record = KeyRecord(hash_key(f"lp-{number}"), Role.TENANT, "t1", f"lp-{number}...", 5.0)
        directory.apply(Event(record.key, record.to_value(), 1 + number))
        kept = kept or directory.hints("t1")
    assert directory.hints("t1") is kept == {"lp-0...", "lp-1...", "lp-2..."}
    assert directory.hints("t2") == set()


def test_only_the_hash_of_a_key_is_kept(tenants, registry):
    key = tenants.create(TenantRecord("t1"))[1]
    value = registry.get(key_key(key)).value
    assert key[3:] not in str(registry.list("").entries)
    assert KeyRecord.from_value(value).hint == key[:7] + "..."


async def test_a_request_of_no_session_is_drawn_and_one_of_a_session_never(registry, clock):
    publish(registry, "t1", "bot", digest="b" * 64)
    record = publish(registry, "t1", "bot")
    split = record.with_canary("b" * 64, 0.5)
    registry.put(record.key, split.to_value(), None)
    draws = iter([0.49, 0.5])
    catalog = Catalog(registry, clock=clock, draw=lambda: next(draws))
    await catalog.refresh()
    found = [(await catalog.resolve("bot", "t1")).digest[0] for _ in range(2)]
    assert found == ["b", "a"]
    for session in ("one", "two", "three"):
        here = position("t1", "bot", None, session) < 0.5
        digest = (await catalog.resolve("bot", "t1", session)).digest
        assert (digest[0] == "b") is here
    assert (await catalog.resolve("bot@canary", "t1")).digest[0] == "b"


async def test_changed_tenants_are_told_once(catalog, watched, registry, tenants):
    tenants.create(TenantRecord("t1"))
    await catalog.refresh()
    tenants.create(TenantRecord("t2"))
    tenants.suspend("t1")
    await catalog.refresh()
    assert catalog.take_changed_tenants() == {}, "a new one, and a flag"
    for number, forgets in enumerate((False, True)):
        watched.forgets = forgets
        for weight in (2.0, 3.0 + number):
            tenants.change("t1", lambda record, weight=weight: replace(record, weight=weight))
        await catalog.refresh()
        assert catalog.tenants_changed.is_set()
        changed = catalog.take_changed_tenants()
        assert {name: one.tenant.weight for name, one in changed.items()} == {"t1": 3.0 + number}
        entry = registry.get(tenant_key("t1"))
        assert entry is not None and changed["t1"].rev == entry.rev
        await catalog.refresh()
        assert not catalog.tenants_changed.is_set() and catalog.take_changed_tenants() == {}
