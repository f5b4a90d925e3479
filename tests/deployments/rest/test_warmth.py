"""Warm-ups and pins over REST, what the replicas are told, and the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from deployments.changes.pin_budget import Budget, Budgets
from deployments.changes.pins import PinBudgetExceeded, Pins
from deployments.ingress.hints import Hints
from deployments.orders.tier_orders import read_pins, read_prefetch
from deployments.registry import open_registry
from deployments.registry.pin_record import PINS, PinRecord
from deployments.registry.records import SELF_PUBLISH
from deployments.registry.registry import Entry, Registry
from engine.errors import InvalidRequest
from engine.messages import Prefetch, Retry
from router.owners import owners
from router.ring import Ring
from tests.support.contended import Contended
from tests.support.ingress import InProcess, World, bearer, error_of
from tests.support.memory_control import publish
from tests.support.virtual import VirtualClock

SLOTS = (0, 1, 2)


@pytest.fixture
def world(tmp_path: Path) -> World:
    budgets = {"device_bytes": 9000, "tenant_device_bytes": 6000, "host_bytes": 10_000}
    # The budgets are for elements of four bytes, whatever this machine would choose.
    float32 = {"dtype": "float32"}
    world = World.build(tmp_path, replica=float32, pins={**budgets, "tenant_host_bytes": 10_000})
    world.model.replies = [{"slot": slot, "ready": True} for slot in SLOTS]
    return world


def owner_slots(num: int) -> list[int]:
    return list(owners(SLOTS, "t1/bot", num, 100))


def admin(world: World) -> dict[str, str]:
    return bearer(world.keys["admin"])


def last(world: World, method: str) -> Mapping[str, Any]:
    """The last order of this kind: pins are pushed beside the others."""
    return [order for told, order in world.model.told if told == method][-1]


def last_pins(world: World, slot: int) -> list[tuple[str, bool]]:
    order = last(world, "set_pins")
    return [(pin.ref.ring_key, pin.on_device) for pin in read_pins(order, slot).pins]


async def test_a_warm_up_goes_to_the_owners_and_says_how_far_it_is(world: World) -> None:
    first, second = owner_slots(2)
    world.model.answers = [
        {"slot": second, "tier": "loading", "why": None},
        {"slot": first, "tier": "device", "why": None},
    ]
    async with InProcess(world) as client:
        body = {"tier": "device", "replicas": 2}
        path = "/v1/adapters/t1/bot/prefetch"
        response = await client.post(path, json=body, headers=admin(world))
        assert response.status_code == 202
        answer = response.json()
        assert [p["slot"] for p in answer["replicas"]] == [first, second]
        assert (answer["num_there"], answer["num_replicas"], answer["done"]) == (1, 2, False)
        world.model.answers[0] = {"slot": second, "tier": "device", "why": None}
        response = await client.post(path, json=body, headers=admin(world))
        assert response.status_code == 200 and response.json()["done"]
    order = last(world, "prefetch")
    wishes = {slot: read_prefetch(order, slot) for slot in SLOTS}
    assert {slot for slot, wish in wishes.items() if wish} == {first, second}
    retry, wish = wishes[first]
    assert isinstance(retry, Retry) and retry.ref == wish.ref
    assert isinstance(wish, Prefetch) and wish.is_ordered and wish.to_device
    assert wish.tenant and wish.tenant.id == "t1"


async def test_a_warm_up_that_is_only_followed_tries_nothing_again(world: World) -> None:
    slot = owner_slots(1)[0]
    world.model.answers = [{"slot": slot, "tier": "failed", "why": "no object"}]
    async with InProcess(world) as client:
        path = "/v1/adapters/t1/bot/prefetch"
        await client.post(path, json={"retry": False}, headers=admin(world))
    assert [type(wish) for wish in read_prefetch(last(world, "prefetch"), slot)] == [Prefetch]


@pytest.mark.parametrize(("replicas", "num"), [("owner", 1), ("all", 3), (2, 2), (9, 3)])
async def test_how_many_replicas(world: World, replicas: Any, num: int) -> None:
    async with InProcess(world) as client:
        body = {"tier": "host", "replicas": replicas}
        response = await client.post(
            "/v1/adapters/t1/bot/prefetch", json=body, headers=admin(world)
        )
        assert response.json()["num_replicas"] == num
    assert sorted(last(world, "prefetch")["slots"]) == sorted(owner_slots(num))


async def test_who_may_not_and_what_is_not_there(world: World) -> None:
    async with InProcess(world) as client:
        path = "/v1/adapters/t1/bot/prefetch"
        error_of(await client.post(path, json={}), 403)
        missing = path.replace("bot", "nobody")
        error_of(await client.post(missing, json={}, headers=admin(world)), 404)
        for bad in (
            {"tier": "disk"},
            *({"replicas": n} for n in (0, -1, 10**30, True, "two", 1.5)),
        ):
            error = error_of(await client.post(path, json=bad, headers=admin(world)), 400)
            assert error["param"] == next(iter(bad))
            assert "must be" in error["message"] and "iteral" not in error["message"]
        error_of(await client.delete("/v1/adapters/t1/bot/pin", headers=admin(world)), 404)
        world.model.replies = []
        error_of(await client.post(path, json={}, headers=admin(world)), 503)


async def test_a_pin_is_pushed_at_once_and_again_to_who_has_just_started(world: World) -> None:
    path = "/v1/adapters/t1/bot/pin"
    async with InProcess(world) as client:
        response = await client.put(path, json={"replicas": 2}, headers=admin(world))
        assert response.status_code == 200, response.text
        for slot in SLOTS:
            pinned = [("t1/bot", True)] if slot in owner_slots(2) else []
            assert last_pins(world, slot) == pinned
        listed = await client.get("/v1/pins", headers=admin(world))
        assert [pin["model"] for pin in listed.json()["data"]] == ["t1/bot"]
    world.model.told.clear()
    async with InProcess(world):  # another ingress, later: the registry has kept it
        while not world.model.told:
            await asyncio.sleep(0.01)
        assert last_pins(world, owner_slots(1)[0]) == [("t1/bot", True)]
    async with InProcess(world) as client:
        await client.delete(path, headers=admin(world))
        assert last_pins(world, owner_slots(1)[0]) == []


async def test_a_pin_over_the_budget_is_refused_with_the_numbers(world: World) -> None:
    async with InProcess(world) as client:

        async def pin(model: str, tier: str = "device") -> Any:
            path = f"/v1/adapters/{model}/pin"
            return await client.put(path, json={"tier": tier}, headers=admin(world))

        first = await pin("t1/bot")
        num_bytes = first.json()["num_bytes"]
        assert 3000 < num_bytes <= 4500, "one fits a tenant's budget, and two do all tenants'"
        publish(world.registry, "t1", "two")
        for name in ("one", "two"):
            publish(world.registry, "t2", name)
        await world.registry.two()
        error = error_of(await pin("t1/two"), 409)
        assert error["code"] == "pin_budget_exceeded"
        assert str(num_bytes) in error["message"] and "6000" in error["message"]
        assert (await pin("t1/two", "host")).status_code == 200, "a tier has its own budget"
        assert (await pin("t2/one")).status_code == 200
        assert (await pin("t1/bot")).status_code == 200, "pinned again in its own place"


def record(tenant: str, name: str, num_elements: int) -> PinRecord:
    return PinRecord(tenant, name, True, 0, num_elements, "x", 5.0)


async def test_a_pin_over_its_tenant_s_quota_is_refused(world: World) -> None:
    limited = replace(world.tenants.get("t1"), max_device_bytes=4000)
    world.registry.put(limited.key, limited.to_value(), None)
    async with InProcess(world) as client:
        path = "/v1/adapters/t1/bot/pin"
        error = error_of(await client.put(path, headers=admin(world)), 409)
        assert error["code"] == "pin_budget_exceeded" and "quota" in error["message"]
        host = await client.put(path, json={"tier": "host"}, headers=admin(world))
        assert host.status_code == 200


async def test_a_pin_ends_with_its_adapter(world: World) -> None:
    async with InProcess(world) as client:
        await client.put("/v1/adapters/t1/bot/pin", headers=admin(world))
        answer = await client.delete("/v1/adapters/t1/bot", headers=admin(world))
        assert answer.status_code == 200
        assert last_pins(world, owner_slots(1)[0]) == []
        assert (await client.get("/v1/pins", headers=admin(world))).json()["data"] == []


async def test_a_pin_that_stays_holds_up_no_retiring(world: World) -> None:
    """Others keep changing the pins: what runs ends all the same, and the answer says so."""
    async with InProcess(world) as client:
        await client.put("/v1/adapters/t1/bot/pin", headers=admin(world))
    world.registry = cast(Registry, Contended(world.registry, PINS, times=8))
    async with InProcess(world) as client:
        retire = partial(client.delete, "/v1/adapters/t1/bot?now=true", headers=admin(world))
        error = error_of(await retire(), 503)
        assert error["code"] == "pin_stays" and "Retire it once more" in error["message"]
        assert [now for _, now in world.model.drops] == [True]
        assert (await retire()).status_code == 200
        assert (await client.get("/v1/pins", headers=admin(world))).json()["data"] == []


# A tenant's own key -------------------------------------------------------------------------------
@pytest.fixture
def own(world: World) -> World:
    """t1 may change its own adapters; t2 has one, too."""
    flagged = world.tenants.get("t1").with_flag(SELF_PUBLISH, True)
    world.registry.put(flagged.key, flagged.to_value(), None)
    publish(world.registry, "t2", "there")
    return world


async def test_a_tenant_warms_and_pins_its_own_adapters(own: World) -> None:
    (slot,) = owner_slots(1)
    own.model.answers = [{"slot": slot, "tier": "failed", "why": "s3://x", "public": "no access"}]
    path = "/v1/adapters/t1/bot"
    async with InProcess(own) as client:  # with the key of t1
        warming = await client.post(f"{path}/prefetch")
        assert warming.json()["replicas"] == [{"slot": slot, "tier": "failed", "why": "no access"}]
        wish = read_prefetch(last(own, "prefetch"), slot)[-1]
        assert isinstance(wish, Prefetch) and wish.is_ordered
        assert wish.tenant and wish.tenant.id == "t1"
        asked = await client.post(f"{path}/prefetch", headers=admin(own))
        assert asked.json()["replicas"][0]["why"] == "s3://x"
        assert (
            await client.put("/v1/adapters/t2/there/pin", headers=admin(own))
        ).status_code == 200
        assert (await client.put(f"{path}/pin")).status_code == 200
        listed = (await client.get("/v1/pins")).json()["data"]
        assert [(p["model"], p["by"]) for p in listed] == [("t1/bot", own.keys["t1"][:7] + "...")]
        every = (await client.get("/v1/pins", headers=admin(own))).json()["data"]
        assert [p["model"] for p in every] == ["t1/bot", "t2/there"]
        assert (await client.delete(f"{path}/pin")).status_code == 200


async def test_another_tenant_s_warmth_is_not_found_in_the_same_words(own: World) -> None:
    async with InProcess(own) as client:
        for method, below in (("POST", "prefetch"), ("PUT", "pin")):
            said = []
            for model in ("t2/there", "t2/nosuch", "t1/nosuch"):
                answer = await client.request(method, f"/v1/adapters/{model}/{below}")
                said.append(error_of(answer, 404)["message"].replace(model, "X"))
            assert len(set(said)) == 1, said
        error_of(await client.delete("/v1/adapters/t2/there/pin"), 404)
        for tenant in ("t2", "nosuch"):
            error = error_of(await client.get("/v1/pins", params={"tenant": tenant}), 404)
            assert error["message"] == f"There is no tenant {tenant}."
    assert {method for method, _ in own.model.told} <= {"set_pins"}


async def test_a_tenant_learns_nothing_of_the_others_pins(own: World) -> None:
    flagged = own.tenants.get("t2").with_flag(SELF_PUBLISH, True)
    own.registry.put(flagged.key, flagged.to_value(), None)
    publish(own.registry, "t3", "third")
    async with InProcess(own) as client:
        for model in ("t1/bot", "t3/third"):
            path = f"/v1/adapters/{model}/pin"
            assert (await client.put(path, headers=admin(own))).status_code == 200
        path = "/v1/adapters/t2/there/pin"
        theirs = error_of(await client.put(path, headers=bearer(own.keys["t2"])), 409)
        assert theirs["message"] == (
            "All tenants' pins leave no room for it. Ask the service's operator."
        )
        assert "9000" in error_of(await client.put(path, headers=admin(own)), 409)["message"]


def test_of_pins_at_once_only_those_pass_that_fit_together(tmp_path: Path) -> None:
    """Each alone fits the budget of all. The registry hands the second the revision of before."""
    registry = open_registry(f"sqlite://{tmp_path}/registry.db")
    pins = Pins(registry, Budgets(Budget(100, 100), Budget(100, 100)), 1)

    class Late:
        """A registry on which somebody else pins right after the pins were read."""

        def get(self, key: str) -> Entry | None:
            entry = registry.get(key)
            if not pins.all():
                pins.pin(record("a", "first", 60))
            return entry

        def __getattr__(self, name: str) -> Any:
            return getattr(registry, name)

    late = Pins(cast(Registry, Late()), Budgets(Budget(100, 100), Budget(100, 100)), 1)
    with pytest.raises(PinBudgetExceeded, match="take 60 of them already"):
        late.pin(record("b", "second", 60))
    late.pin(record("b", "second", 40))
    assert [(p.tenant, p.num_elements) for p in pins.all()] == [("a", 60), ("b", 40)]
    pins.unpin("a", "first")
    assert [p.tenant for p in pins.all()] == ["b"]
    registry.close()


async def test_a_request_for_a_version_not_seen_for_a_while_sends_word_ahead(world: World) -> None:
    async with InProcess(world) as client:
        for _ in range(3):
            body = {"model": "t1/bot", "prompt": "hello"}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        await client.post("/v1/completions", json={"model": "org/tiny", "prompt": "hello"})
    assert [(ref.ring_key, tenant.id) for ref, tenant in world.model.hints] == [("t1/bot", "t1")]


def test_which_requests_are_worth_a_word() -> None:
    clock = VirtualClock()
    hints = Hints(clock, quiet_s=10.0, max_kept=2)
    assert hints.see("a") and not hints.see("a")
    clock.sleep(9.0)
    assert not hints.see("a")
    clock.sleep(9.0)
    assert not hints.see("a"), "seen 9 s ago"
    clock.sleep(10.0)
    assert hints.see("a")
    assert hints.see("b") and hints.see("c") and hints.see("a"), "two are remembered"


def test_owners_are_those_that_the_router_walks_to() -> None:
    ring = Ring([f"slot-{slot}" for slot in range(40)], vnodes=7)
    for key in ("t/a", "t/b", "u/c"):
        expected = [int(name.removeprefix("slot-")) for name in ring.walk(key)]
        assert list(owners(range(40), key, 0, 7)) == expected
        assert list(owners(range(40), key, 3, 7)) == expected[:3]
    assert owners((), "t/a", 1, 7) == ()


@pytest.mark.parametrize("order", [{}, {"v": 2}, {"v": 1}, {"v": 1, "slots": None, "ref": {}}])
def test_an_order_that_cannot_be_read_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_prefetch(order, 0)
    with pytest.raises(InvalidRequest):
        read_pins(order, 0)
