"""What tenants have used: gathered from replicas, kept over their deaths and control's, shown to
whom it concerns."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deployments.control.usage_keeper import FRESH_S, UsageKeeper
from deployments.control.usage_ledger import GONE, GONE_S, MAX_GONE, USAGE, UsageLedger
from deployments.registry import open_registry
from deployments.registry.registry import Registry
from deployments.replica.books import FIELDS, Books
from engine.core_stats import CoreStats
from engine.errors import InvalidRequest, Unavailable
from engine.usage import TenantUsage
from tests.support.ingress import InProcess, World, bearer, error_of
from tests.support.virtual import VirtualClock

NOTHING = CoreStats(*[0] * 16)  # type: ignore[arg-type]


class Fleet:
    """Replicas of which nothing is real but their books. `whole`: what all lives have told."""

    def __init__(self, num: int) -> None:
        self.num_lives = 0
        self.away = False
        self.silent: set[int] = set()
        self.late: set[int] = set()
        self.whole: dict[str, int] = {}
        self._tokens: list[dict[str, int]] = [{} for _ in range(num)]
        self.books = [self._life() for _ in range(num)]
        self.num_told = 0
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    def _life(self) -> Books:
        self.num_lives += 1
        return Books(f"life-{self.num_lives}")

    def serve(self, slot: int, tenant: str, num_tokens: int) -> None:
        mine = self._tokens[slot]
        mine[tenant] = mine.get(tenant, 0) + num_tokens
        self.whole[tenant] = self.whole.get(tenant, 0) + num_tokens
        used = TenantUsage(tenant, output_tokens=mine[tenant], device_s=mine[tenant] / 100)
        fields = {name: getattr(NOTHING, name) for name in CoreStats.__dataclass_fields__}
        self.books[slot].heard(CoreStats(**{**fields, "usage": (used,)}))

    def restart(self, slot: int) -> None:
        self.books[slot] = self._life()
        self._tokens[slot] = {}

    async def tell(
        self, method: str, order: Mapping[str, Any], timeout_s: float
    ) -> list[Mapping[str, Any]]:
        assert method == "gather_usage"
        if self.away:
            raise Unavailable("away")
        self.num_told += 1
        if not self.answers.is_set():
            self.asked.set()
            await self.answers.wait()
        speak = [book for slot, book in enumerate(self.books) if slot not in self.silent]
        told = {book: book.usage.answer(order) for book in speak}
        return [answer for book, answer in told.items() if self.books.index(book) not in self.late]


def keeper(fleet: Fleet, registry: Registry | Faulty, clock: VirtualClock) -> UsageKeeper:
    return UsageKeeper(fleet, registry, clock)  # type: ignore[arg-type]


async def totals(kept: UsageKeeper) -> dict[str, int]:
    found = await kept.usage(None, "", 1000)
    return {used["tenant"]: used["output_tokens"] for used in found["data"]}


class Faulty:
    """A registry some of whose writes fail, half of those after they were made. `fails`: how many,
    of one, by method."""

    def __init__(self, registry: Registry, rng: random.Random) -> None:
        self._registry = registry
        self._rng = rng
        self.fails: dict[str, float] = {}
        self.list = registry.list

    def put(self, key: str, value: Mapping[str, Any], expected_rev: int | None) -> int:
        return self._write("put", lambda: self._registry.put(key, value, expected_rev))

    def delete(self, key: str, expected_rev: int | None) -> int:
        return self._write("delete", lambda: self._registry.delete(key, expected_rev))

    def _write(self, method: str, write: Callable[[], int]) -> int:
        if self._rng.random() >= self.fails.get(method, 0.0):
            return write()
        if self._rng.random() < 0.5:
            write()
        raise Unavailable("lost")


@pytest.mark.parametrize("fails", [{}, {"put": 0.3, "delete": 0.3}])
async def test_counts_outlive_replicas_and_control(tmp_path: Path, fails: dict[str, float]) -> None:
    """Random service, deaths and silences, and writes that fail; only control's death with a
    replica's may lose any, and nothing counts twice."""
    rng, clock, fleet = random.Random(4), VirtualClock(), Fleet(3)
    registry = open_registry(f"sqlite://{tmp_path}/registry.db")
    faulty = Faulty(registry, rng)
    kept = keeper(fleet, faulty, clock)
    before: dict[str, int] = {}
    for turn in range(60):
        clock.sleep(rng.choice([1.0, 30.0, GONE_S]))
        for _ in range(5):
            fleet.serve(rng.randrange(3), rng.choice("abc"), rng.randint(1, 50))
        fleet.away = rng.random() < 0.2
        if not fleet.away:
            assert await totals(kept) == fleet.whole
        else:
            now = await totals(kept)
            assert all(now.get(tenant, 0) >= num for tenant, num in before.items())
        if not fleet.away and rng.random() < 0.3:
            fleet.restart(rng.randrange(3))
        faulty.fails = fails
        if rng.random() < 0.5:
            with suppress(Unavailable):
                await kept.save()
        if turn % 10 == 9:
            fleet.away = False
            clock.sleep(FRESH_S)
            before = await totals(kept)
            # All that is counted is written; whether what is in the past is deleted, is open.
            faulty.fails = {"delete": 1.0} if fails else {}
            with suppress(Unavailable):
                await kept.save()
            kept.close()
            kept = keeper(fleet, faulty, clock)
            assert await totals(kept) == before == fleet.whole
    faulty.fails = {}
    await kept.save()
    assert len(registry.list(USAGE).entries) < fleet.num_lives, "old lives are added up"
    kept.close()
    registry.close()


@pytest.mark.parametrize("fails", [{}, {"put": 0.2, "delete": 0.3}])
async def test_whoever_answers_after_hours_of_silence_counts_once_and_goes_on(
    tmp_path: Path, fails: dict[str, float]
) -> None:
    """Some hear no order, and some answer each too late. Control restarts meanwhile or doesn't;
    nothing counts twice at any time, and all that was served counts once everybody has answered
    twice."""
    rng, clock, fleet = random.Random(6), VirtualClock(), Fleet(4)
    registry = open_registry(f"sqlite://{tmp_path}/registry.db")
    faulty = Faulty(registry, rng)
    kept = keeper(fleet, faulty, clock)
    num_gone = 0
    for _ in range(40):
        fleet.silent = {slot for slot in range(4) if rng.random() < 0.3}
        fleet.late = {slot for slot in range(4) if rng.random() < 0.3}
        for _ in range(3):
            for _ in range(5):
                fleet.serve(rng.randrange(4), rng.choice("abc"), rng.randint(1, 50))
            clock.sleep(rng.choice([2.0, 0.6 * GONE_S]))
            told = await totals(kept)
            assert all(num <= fleet.whole[tenant] for tenant, num in told.items())
            faulty.fails = fails
            with suppress(Unavailable):
                await kept.save()
        if rng.random() < 0.5:
            faulty.fails = {}
            await kept.save()
            kept.close()
            kept = keeper(fleet, faulty, clock)
        if rng.random() < 0.5:
            fleet.silent, fleet.late = set(), set()
            clock.sleep(FRESH_S)
            await totals(kept)
            clock.sleep(FRESH_S)
            assert await totals(kept) == fleet.whole
        num_gone = max(num_gone, len(registry.list(GONE).entries))
    assert num_gone > 5
    kept.close()
    registry.close()


def test_an_hour_of_late_answers_is_counted_once_they_come_in_time() -> None:
    fleet, ledger = Fleet(1), UsageLedger()
    usage = fleet.books[0].usage
    fleet.serve(0, "a", 5)
    ledger.read([usage.answer(ledger.order())], 0.0)
    for _ in range(3):
        fleet.serve(0, "a", 1)
        usage.answer(ledger.order())  # control waits no longer
        ledger.read([{"epoch": "other", "number": 0, "usage": {}}], 1.0)
    ledger.fold(GONE_S + 2.0)
    usage.answer(ledger.order())  # late once more
    for _ in range(2):
        ledger.read([usage.answer(ledger.order())], GONE_S + 3.0)
    assert ledger.total("a")["output_tokens"] == 8


def test_names_of_lives_that_are_gone_are_kept_to_a_number() -> None:
    ledger = UsageLedger()
    records: dict[str, Any] = {
        f"{GONE}life-{n}": {"v": 1, "number": n} for n in range(MAX_GONE + 3)
    }
    ledger.load(records.items())
    written, deleted = ledger.fold(0.0)
    assert written == {} and sorted(deleted) == [f"{GONE}life-{n}" for n in range(3)]
    ledger.kept(written, deleted)
    assert ledger.fold(0.0) == ({}, [])
    answer = {"epoch": "life-3", "number": 5, "usage": {}}
    ledger.read([answer], 0.0)
    ended = {"v": 1, "since": {}, "counted": {"life-3": 0}, "ended": ["life-3"]}
    assert ledger.order() == ended


async def test_however_many_ask_replicas_are_asked_once_a_second_and_saving_waits_for_nobody(
    tmp_path: Path,
) -> None:
    clock, fleet = VirtualClock(), Fleet(1)
    registry = open_registry(f"sqlite://{tmp_path}/registry.db")
    kept = keeper(fleet, registry, clock)
    fleet.serve(0, "a", 5)
    assert await totals(kept) == {"a": 5} and fleet.num_told == 1
    fleet.serve(0, "a", 1)
    clock.sleep(0.9 * FRESH_S)
    assert await totals(kept) == {"a": 5} and fleet.num_told == 1
    clock.sleep(0.1 * FRESH_S)
    fleet.answers.clear()
    asking = [asyncio.create_task(totals(kept)) for _ in range(100)]
    async with asyncio.timeout(60):
        await fleet.asked.wait()
        asking.pop(0).cancel()  # a client goes
        await kept.save()
        assert {e.key for e in registry.list(USAGE).entries}
        fleet.answers.set()
        assert await asyncio.gather(*asking) == 99 * [{"a": 6}]
    assert fleet.num_told == 2
    kept.close()
    registry.close()


def test_only_what_has_changed_is_told_and_twice_is_once() -> None:
    fleet, ledger = Fleet(1), UsageLedger()
    fleet.serve(0, "a", 5)
    fleet.serve(0, "b", 7)
    first = fleet.books[0].usage.answer(ledger.order())
    assert set(first["usage"]) == {"a", "b"}
    ledger.read([first], 0.0)
    ledger.read([first], 0.0)
    fleet.serve(0, "b", 1)
    second = fleet.books[0].usage.answer(ledger.order())
    assert set(second["usage"]) == {"b"}
    ledger.read([second], 0.0)
    ledger.read([first], 0.0)  # late
    assert ledger.total("a")["output_tokens"] == 5 and ledger.total("b")["output_tokens"] == 8
    assert ledger.total("b")["device_s"] == pytest.approx(0.08)
    assert set(ledger.total("nobody").values()) == {0}


@pytest.mark.parametrize("num_written", [0, 1, 2, 3, 6])
def test_cut_off_between_the_writes_of_folding_nothing_counts_twice(num_written: int) -> None:
    fleet, ledger, tenants = Fleet(2), UsageLedger(), "abcde"
    for slot in (0, 1):
        for tenant in tenants:
            fleet.serve(slot, tenant, 5)
        ledger.read([fleet.books[slot].usage.answer(ledger.order())], 0.0)
    records: dict[str, Mapping[str, Any]] = dict(ledger.unsaved())
    ledger.read([fleet.books[1].usage.answer(ledger.order())], 0.0)
    past, gone = ledger.fold(GONE_S + 1.0)
    assert next(iter(past)) == f"{GONE}life-1" and len(past) == 1 + len(gone) == 6
    assert all(key.startswith(USAGE + "life-1") for key in gone)
    records.update(list(past.items())[:num_written])
    again = UsageLedger()
    again.load(records.items())
    for _ in range(2):
        assert {t: again.total(t)["output_tokens"] for t in tenants} == dict.fromkeys(tenants, 10)
        assert len(again.fold(0.0)[1]) == max(0, num_written - 1), "they are yet to be deleted"
        again.read([fleet.books[0].usage.answer(again.order())], 0.0)  # it was not gone after all


def test_one_tenants_change_writes_few_others_and_no_record_is_large() -> None:
    """Of 10,000 tenants: every ingress reads each record that is written."""
    ledger = UsageLedger()

    def told(number: int, tenants: list[str]) -> dict[str, Any]:
        used = {**dict.fromkeys(FIELDS, 123456.789), "output_tokens": number}
        return {"epoch": "life", "number": number, "usage": dict.fromkeys(tenants, used)}

    ledger.read([told(1, [f"tenant-{i}" for i in range(10_000)])], 0.0)
    whole = ledger.unsaved()
    sizes = [len(json.dumps(record)) for record in whole.values()]
    assert sum(sizes) > 2_000_000 and max(sizes) < 64_000
    assert ledger.unsaved() == {}
    ledger.read([told(2, ["tenant-7"])], 0.0)
    ((key, record),) = ledger.unsaved().items()
    assert record["tenants"]["tenant-7"]["output_tokens"] == 2
    ledger.unsave([key])
    assert set(ledger.unsaved()) == {key}


def test_an_order_of_another_release_is_refused() -> None:
    for order in ({"v": 2, "since": {}}, {"v": 1}):
        with pytest.raises(InvalidRequest):
            Books("life").usage.answer(order)


async def test_a_tenant_sees_its_own_and_an_admin_everybodys(tmp_path: Path) -> None:
    world = World.build(tmp_path)
    admin, fleet = bearer(world.keys["admin"]), Fleet(1)
    for tenant, num in (("t1", 5), ("t2", 7)):
        fleet.serve(0, tenant, num)
    world.control.ledger.read([fleet.books[0].usage.answer(world.control.ledger.order())], 0.0)
    async with InProcess(world) as client:
        for query in ("", "?tenant=t1", "?tenant=t1&limit=1"):
            body = (await client.get(f"/v1/usage{query}")).json()
            (mine,) = body["data"]
            assert set(mine) == {"object", "tenant", *FIELDS}
            assert (mine["tenant"], mine["output_tokens"]) == ("t1", 5)
        whole = (await client.get("/v1/usage", headers=admin)).json()
        assert [(u["tenant"], u["output_tokens"]) for u in whole["data"]] == [("t1", 5), ("t2", 7)]
        first = (await client.get("/v1/usage?limit=1", headers=admin)).json()
        assert first["has_more"] and first["last"] == "t1"
        rest = (await client.get("/v1/usage?limit=1&after=t1", headers=admin)).json()
        assert not rest["has_more"] and rest["data"][0]["tenant"] == "t2"
        one = (await client.get("/v1/usage?tenant=t2", headers=admin)).json()
        assert [u["output_tokens"] for u in one["data"]] == [7]
        others = error_of(await client.get("/v1/usage?tenant=t2"), 404)
        unknown = error_of(await client.get("/v1/usage?tenant=t9"), 404)
        assert others["message"] == unknown["message"].replace("t9", "t2")
        error_of(await client.get("/v1/usage?tenant=t9", headers=admin), 404)
        both = await client.get("/v1/usage?tenant=t1&after=zzz", headers=admin)
        assert error_of(both, 400)["param"] == "after"
        wrong = error_of(await client.get("/v1/usage?tennant=t1"), 400)
        assert wrong["param"] == "tennant"
        world.control.away = Unavailable("Control is away.")
        error_of(await client.get("/v1/usage"), 503)
        error_of(await client.get("/v1/usage", headers={"authorization": ""}), 401)
