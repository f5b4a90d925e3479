"""Naming, retiring, listing and downloading adapters over REST."""

import pytest

from deployments.orders.tier_orders import read_retry
from engine.adapters.store import CONFIG, TENSORS
from engine.errors import Unavailable
from tests.support.adapter_calls import until_version, version_of
from tests.support.ingress import (
    bearer,
    error_of,
    events,
)
from tests.support.memory_control import publish, put_version

BOT = "/v1/adapters/t1/bot"


async def test_who_has_failed_of_a_version_is_told_that_it_may_be_mended(admin, world, two):
    def told():
        orders = [order for method, order in world.model.told if method == "retry"]
        world.model.told.clear()
        return [[message.ref.digest for message in read_retry(order)] for order in orders]

    told()
    body = {"tenant": "t1", "name": "two", "folder": "any"}
    published = (await admin.post("/v1/adapters", json=body)).json()["version"]
    assert told() == [[published]]
    await admin.post("/v1/adapters/t1/two/promote", json={"version": two[0]})
    assert told() == [[two[0]]]
    await admin.post("/v1/adapters/t1/two/promote", json={"version": two[1], "as": "canary"})
    assert [set(digests) for digests in told()] == [set(two)]
    await admin.post("/v1/adapters/t1/two/rollback", json={"as": "canary"})
    assert told() == [[two[0]]]


# B-MODEL-ECHO
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_the_answer_says_its_version_and_echoes_the_model(admin, world, two, path):
    key = bearer(world.keys["t1"])
    said = (
        {"prompt": "x"}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "x"}]}
    )
    for model in ("t1/two", "two", "two@production", f"two@{two[1][:8]}"):
        body = {"model": model, **said}
        whole = await admin.post(path, json=body, headers=key)
        assert whole.json()["model"] == model
        stream = await admin.post(path, json={**body, "stream": True}, headers=key)
        assert {c["model"] for c in events(stream)} == {model}
        for answer in (whole, stream):
            assert answer.headers["x-loraplex-adapter-version"] == two[1]
    base = await admin.post(path, json={"model": "org/tiny", **said}, headers=key)
    assert "x-loraplex-adapter-version" not in base.headers
    assert await version_of(admin, world, f"two@{two[0]}") == two[0]


async def test_promote_and_roll_back_take_effect_within_two_polls(admin, world, two):
    assert 2 * world.config.ingress.registry_poll_s < 2, "the documents say: within two seconds"
    assert await version_of(admin, world, "two") == two[1]
    answer = await admin.post("/v1/adapters/t1/two/rollback", json={"expect": two[1][:8]})
    assert answer.json()["digest"] == two[0]
    await world.registry.two()
    assert await version_of(admin, world, "two") == two[0]
    body = {"version": two[1][:12], "expect": two[0]}
    assert (await admin.post("/v1/adapters/t1/two/promote", json=body)).json()["digest"] == two[1]
    await world.registry.two()
    assert await version_of(admin, world, "two") == two[1]
    error = error_of(await admin.post("/v1/adapters/t1/two/promote", json=body), 409)
    assert error["param"] == "expect"


async def test_a_canary_and_an_alias(admin, world, two):
    body = {"version": two[0], "as": "canary", "weight": 0.3}
    view = (await admin.post("/v1/adapters/t1/two/promote", json=body)).json()
    assert view["aliases"]["production"] == {
        "digest": two[1],
        "canary": two[0],
        "weight": 0.3,
        "history": [two[0]],
        "gate": True,
        "ended": [],
    }
    await until_version(admin, world, "two@canary", two[0])
    sides = [await version_of(admin, world, "two", **{"x-session-id": f"s{n}"}) for n in range(100)]
    assert 15 <= sides.count(two[0]) <= 45
    again = [await version_of(admin, world, "two", **{"x-session-id": f"s{n}"}) for n in range(100)]
    assert again == sides
    wider = {"version": two[0], "as": "canary", "weight": 0.6}
    await admin.post("/v1/adapters/t1/two/promote", json=wider)
    await world.registry.two()
    for n, side in enumerate(sides):
        if side == two[0]:
            assert await version_of(admin, world, "two", **{"x-session-id": f"s{n}"}) == two[0]
    await admin.post("/v1/adapters/t1/two/promote", json={"version": "canary"})
    await until_version(admin, world, "two", two[0])
    await admin.post("/v1/adapters/t1/two/promote", json={"version": two[1], "as": "beta"})
    await until_version(admin, world, "two@beta", two[1])
    view = (await admin.delete("/v1/adapters/t1/two/aliases/beta")).json()
    assert list(view["aliases"]) == ["production"]
    error_of(await admin.delete("/v1/adapters/t1/two/aliases/production"), 409)
    error_of(await admin.delete("/v1/adapters/t1/two/aliases/beta"), 404)
    error_of(await admin.delete("/v1/adapters/t1/two/aliases/canary"), 404)


@pytest.mark.parametrize("field", ["user", "safety_identifier", "prompt_cache_key"])
async def test_the_body_names_the_session_too(admin, world, two, field):
    body = {"version": two[0], "as": "canary", "weight": 0.5}
    await admin.post("/v1/adapters/t1/two/promote", json=body)
    await until_version(admin, world, "two@canary", two[0])
    key = bearer(world.keys["t1"])
    sides = {}
    for n in [*range(40), *range(40)]:
        body = {"model": "two", "prompt": "x", field: f"u{n}"}
        answer = await admin.post("/v1/completions", json=body, headers=key)
        side = answer.headers["x-loraplex-adapter-version"]
        assert sides.setdefault(n, side) == side
    assert set(sides.values()) == set(two)


async def test_what_cannot_be_promoted(admin, world, two):
    promote = "/v1/adapters/t1/two/promote"
    error_of(await admin.post(promote, json={"version": "f" * 8}), 404)
    error_of(await admin.post(promote, json={"version": two[0], "as": "DEADBEEF"}), 400)
    error_of(await admin.post(promote, json={"version": two[0], "weight": 0.5}), 400)
    error_of(await admin.post(promote, json={"version": two[1], "as": "canary"}), 409)
    world.store.delete(f"adapters/t1/{two[0]}/{TENSORS}")
    error = error_of(await admin.post(promote, json={"version": two[0]}), 409)
    assert error["code"] == "object_not_whole" and "Publish" in error["message"]
    error_of(await admin.post("/v1/adapters/t1/two/rollback", json={}), 409)
    assert (await admin.delete(f"/v1/adapters/t1/two/versions/{two[0]}")).status_code == 200
    error = error_of(await admin.post(promote, json={"version": two[0]}), 409)
    assert error["code"] == "version_retired"
    error_of(await admin.post("/v1/adapters/t1/nosuch/promote", json={"version": two[0]}), 404)


# Retiring -----------------------------------------------------------------------------------------
async def test_retiring_tells_the_replicas(admin, world, two):
    error = error_of(await admin.delete(f"/v1/adapters/t1/two/versions/{two[1]}"), 409)
    assert error["code"] == "version_in_use"
    assert world.model.drops == []
    for _ in range(2):
        view = (await admin.delete(f"/v1/adapters/t1/two/versions/{two[0][:12]}")).json()
        assert [v["retired_s"] is None for v in view["versions"]] == [True, False]
        ((refs, now),) = world.model.drops
        assert ([r.digest for r in refs], now) == ([two[0]], False)
        world.model.drops.clear()
    view = (await admin.delete("/v1/adapters/t1/two")).json()
    assert view["status"] == "retired" and view["aliases"] == {}


async def test_retiring_now_is_told_and_fails_loudly(admin, world, two):
    answer = await admin.delete("/v1/adapters/t1/two", params={"now": "true"})
    assert answer.status_code == 200
    assert [(len(refs), now) for refs, now in world.model.drops] == [(2, True)]
    world.model.deaf = Unavailable("one replica is silent")
    error = error_of(await admin.delete("/v1/adapters/t1/two", params={"now": "true"}), 503)
    assert error["code"] == "not_told" and "--now once more" in error["message"]
    assert (await admin.delete("/v1/adapters/t1/two")).status_code == 200
    error_of(await admin.delete("/v1/adapters/t1/two", params={"now": "yes"}), 400)


async def test_a_misspelt_version_retires_nothing(admin, world, two):
    for params in ({"verison": two[0]}, {"now": "true", "bogus": "1"}):
        error = error_of(await admin.delete("/v1/adapters/t1/two", params=params), 400)
        assert error["param"] in params
    error_of(await admin.request("DELETE", "/v1/adapters/t1/two", json={"now": True}), 400)
    view = (await admin.get("/v1/adapters/t1/two")).json()
    assert view["status"] != "retired"
    assert [v["retired_s"] for v in view["versions"]] == [None, None]


async def test_a_canary_keeps_its_weight_unless_one_is_named(admin, two):
    body = {"version": two[0], "as": "canary"}
    for weight, expected in ((None, 0.0), (0.3, 0.3), (None, 0.3)):
        asked = body if weight is None else {**body, "weight": weight}
        answer = await admin.post("/v1/adapters/t1/two/promote", json=asked)
        assert answer.json()["aliases"]["production"]["weight"] == expected


async def test_a_canary_is_retired_by_its_name(admin, world, two):
    body = {"version": two[0], "as": "canary", "weight": 0.3}
    await admin.post("/v1/adapters/t1/two/promote", json=body)
    answer = await admin.delete("/v1/adapters/t1/two/versions/canary", params={"now": "true"})
    assert answer.json()["aliases"]["production"]["canary"] is None
    assert [[r.digest for r in refs] for refs, _ in world.model.drops] == [[two[0]]]
    error_of(await admin.delete("/v1/adapters/t1/two/versions/canary"), 404)


async def test_bytes_that_another_name_serves_are_not_dropped(admin, world, two):
    for name in ("two", "other"):
        version = put_version(world.store, "t1", name, b"two")
        publish(world.registry, "t1", name, digest=version.ref.digest)
    answer = await admin.delete("/v1/adapters/t1/two", params={"now": "true"})
    dropped = [r.digest for refs, _ in world.model.drops for r in refs]
    assert dropped == [two[0]] and answer.json()["shared"] == [two[1]]


# Pages and files ----------------------------------------------------------------------------------
async def test_adapters_come_in_pages(admin, world):
    for number in range(7):
        publish(world.registry, "t2", f"a{number}")
    seen, after = [], ""
    while True:
        params = {"limit": 3, "after": after}
        answer = (await admin.get("/v1/adapters", params=params)).json()
        seen += [a["model"] for a in answer["data"]]
        after = answer["last"]
        if not answer["has_more"]:
            break
    assert seen == ["t1/bot", *(f"t2/a{n}" for n in range(7))]
    only = (await admin.get("/v1/adapters", params={"tenant": "t2", "limit": 3})).json()
    assert len(only["data"]) == 3 and only["has_more"]


async def test_a_version_can_be_downloaded(admin, world, two):
    path = "/v1/adapters/t1/two/versions/production/files"
    answer = await admin.get(f"{path}/{TENSORS}")
    assert answer.content == b"t" * 4096
    assert answer.headers["x-loraplex-adapter-version"] == two[1]
    for bad in ("record.two.json", "nosuch", "%2e%2e"):
        assert (await admin.get(f"{path}/{bad}")).status_code == 404
    world.store.delete(f"adapters/t1/{two[1]}/{CONFIG}")
    error_of(await admin.get(f"{path}/{CONFIG}"), 404)
