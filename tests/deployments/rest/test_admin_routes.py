"""The admin endpoints: who may, what they change, and what they leave alone when they refuse."""

import pytest

from engine.errors import AdapterRejected, Unavailable
from tests.support.ingress import bearer, error_of

PUBLISH = {"tenant": "t2", "name": "new", "folder": "a/b"}
REQUESTS = [
    ("GET", "/v1/adapters", None),
    ("GET", "/v1/adapters/t1/bot", None),
    ("POST", "/v1/adapters", PUBLISH),
    ("DELETE", "/v1/adapters/t1/bot", None),
    ("GET", "/v1/replicas", None),
    ("GET", "/v1/tenants", None),
    ("POST", "/v1/tenants", {"id": "t3"}),
    ("PATCH", "/v1/tenants/t1", {"weight": 2}),
    ("POST", "/v1/tenants/t1/rotate-key", None),
    ("POST", "/v1/tenants/t1/suspend", None),
    ("POST", "/v1/tenants/t1/resume", None),
    ("POST", "/v1/store/sweep", {}),
    ("POST", "/v1/adapters/t1/bot/promote", {"version": "aaaaaaaa"}),
    ("POST", "/v1/adapters/t1/bot/rollback", {}),
    ("DELETE", "/v1/adapters/t1/bot/aliases/beta", None),
    ("DELETE", "/v1/adapters/t1/bot/versions/aaaaaaaa", None),
    ("GET", "/v1/adapters/t1/bot/versions/production/files/adapter_config.json", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_only_an_admin_may_and_nothing_changes(admin, world, method, path, body):
    before = world.registry.list("")
    for key, status in ((world.keys["t1"], 403), ("lp-wrong", 401)):
        response = await admin.request(method, path, json=body, headers=bearer(key))
        error_of(response, status)
    error_of(await admin.request(method, path, json=body, headers={"authorization": ""}), 401)
    assert world.registry.list("") == before


async def test_publish_serves_at_once(admin, world):
    response = await admin.post("/v1/adapters", json=PUBLISH)
    assert response.status_code == 201
    view = response.json()
    assert view["status"] == "published"
    assert view["versions"][0]["by"] == world.keys["admin"][:7] + "..."
    body = {"model": "new", "prompt": "x"}
    answer = await admin.post("/v1/completions", json=body, headers=bearer(world.keys["t2"]))
    assert answer.status_code == 200


async def test_statuses(admin, world):
    key = "t1/" + "a" * 64

    async def shown(*replicas):
        world.model.replies = list(replicas)
        view = (await admin.get("/v1/adapters/t1/bot")).json()
        return view["status"], [(p["slot"], p["tier"]) for p in view["replicas"]]

    def replica(slot, **tiers):
        failed = tiers.pop("failed", {})
        return {"slot": slot, "residency": tiers, "failed": failed}

    assert await shown() == ("published", [])
    assert await shown(replica(0), replica(1, loading=[key])) == ("loading", [(1, "loading")])
    assert await shown(replica(0, host=[key], device=[key]), replica(1, loading=[key])) == (
        "resident",
        [(0, "device"), (1, "loading")],
    )
    assert await shown(replica(0, failed={key: "no disk"})) == ("failed", [(0, "failed")])
    world.model.replies = Unavailable("none")
    assert (await admin.get("/v1/adapters/t1/bot")).json()["status"] == "published"
    assert (await admin.get("/v1/adapters")).json()["data"][0]["status"] == "published"


async def test_replicas_speak_for_themselves(admin, world):
    world.model.replies = [{"ready": True, "slot": 0, "pids": {"core": 7}}]
    answer = (await admin.get("/v1/replicas")).json()
    assert answer["data"] == [{"object": "replica", "ready": True, "slot": 0, "pids": {"core": 7}}]


async def test_a_refused_publish_keeps_its_reason(admin, world):
    before = world.registry.list("")
    world.control.error = AdapterRejected("q_proj has the wrong shape", param="folder")
    error = error_of(await admin.post("/v1/adapters", json=PUBLISH), 422)
    assert error["code"] == "adapter_rejected"
    assert error["message"] == "q_proj has the wrong shape"
    assert world.registry.list("") == before


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "new", "folder": "x"}, "tenant"),
        ({**PUBLISH, "prefix": "x"}, "folder"),
        ({"tenant": "t2", "name": "new"}, "folder"),
        ({**PUBLISH, "weight": 2}, "weight"),
        ({**PUBLISH, "as": "beta", "promote": False}, "promote"),
        ({**PUBLISH, "probes": [{"prompt": ""}]}, "probes"),
        ({**PUBLISH, "probes": [{"prompt": "x", "max_tokens": 65}]}, "probes"),
        ({**PUBLISH, "probes": [{"prompt": "x"}] * 9}, "probes"),
        ({**PUBLISH, "folder": ""}, "folder"),
        ({**PUBLISH, "folder": 7}, "folder"),
        ({**PUBLISH, "fodler": "x"}, "fodler"),
        ([], None),
    ],
)
async def test_bad_publish_bodies(admin, body, param):
    assert error_of(await admin.post("/v1/adapters", json=body), 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"id": "T3"}, 400),
        ({"id": "../x"}, 400),
        ({"id": "t3", "weight": 0}, 400),
        ({"id": "t3", "weight": 5e-324}, 400),
        ({"id": "t3", "max_concurrent": 0}, 400),
        ({"id": "t3", "nosuch": 1}, 400),
        ({"id": "t1"}, 409),
    ],
)
async def test_bad_tenant_bodies_change_nothing(admin, world, body, status):
    before = world.registry.list("")
    error_of(await admin.post("/v1/tenants", json=body), status)
    assert world.registry.list("") == before


async def test_a_tenant_changes_as_the_body_says(admin, world):
    made = await admin.post("/v1/tenants", json={"id": "t3", "max_rank": 8, "self_publish": True})
    assert (made.json()["max_rank"], made.json()["self_publish"]) == (8, True)
    body = {"weight": 3, "max_rank": None, "allowed_ranks": [16, 8, 8], "max_adapters": 0}
    changed = (await admin.patch("/v1/tenants/t3", json=body)).json()
    assert changed["weight"] == 3.0 and changed["max_rank"] is None
    assert (changed["allowed_ranks"], changed["max_adapters"]) == ([8, 16], 0)
    assert changed["self_publish"] and changed["max_concurrent"] == 256
    for bad in ({"weight": 0}, {"id": "t4"}, {"max_rank": 0}, {"max_queued": None}):
        error_of(await admin.patch("/v1/tenants/t3", json=bad), 400)
    error_of(await admin.patch("/v1/tenants/t9", json={}), 404)


async def test_a_suspended_tenant_is_served_again_once_it_is_resumed(admin, world):
    mine = bearer(world.keys["t1"])

    async def becomes(status):
        await world.registry.two()
        assert (await admin.get("/v1/models", headers=mine)).status_code == status

    await becomes(200)
    assert (await admin.post("/v1/tenants/t1/suspend")).json()["suspended"]
    await becomes(403)
    assert not (await admin.post("/v1/tenants/t1/resume")).json()["suspended"]
    await becomes(200)
    error_of(await admin.post("/v1/tenants/t9/suspend"), 404)


async def test_a_sweep_says_what_it_removed(admin, world):
    report = (await admin.post("/v1/store/sweep", json={"dry_run": True})).json()
    assert report["dry_run"] and report["removed"][0]["why"] == "orphan"
    world.control.error = Unavailable("the store is away")
    error_of(await admin.post("/v1/store/sweep", json={}), 503)


async def test_tenants_come_in_pages(admin):
    first = (await admin.get("/v1/tenants", params={"limit": 1})).json()
    assert [t["id"] for t in first["data"]] == ["t1"] and first["has_more"]
    rest = (await admin.get("/v1/tenants", params={"after": first["last"]})).json()
    assert [t["id"] for t in rest["data"]] == ["t2"] and not rest["has_more"]
    for bad in ("0", "1001", "x", "", "-1", "99999999999"):
        error_of(await admin.get("/v1/tenants", params={"limit": bad}), 400)


async def test_what_is_not_there(admin):
    error_of(await admin.get("/v1/adapters/t1/nosuch"), 404)
    error_of(await admin.delete("/v1/adapters/t9/bot"), 404)
    error_of(await admin.get("/v1/adapters/T1/bot"), 400)
    error_of(await admin.get("/v1/adapters", params={"tenant": "../t"}), 400)
    error_of(await admin.get("/v1/adapters", params={"tenant": "nosuch"}), 404)
    error_of(await admin.get("/v1/pins", params={"tenant": "nosuch"}), 404)
    error_of(await admin.post("/v1/tenants/nosuch/rotate-key"), 404)


async def test_limits_that_contradict_each_other_or_nobody_means(admin, world):
    before = world.tenants.get("t1")
    shares = {"soft_kv_share": 0.9, "hard_kv_share": 0.1}
    for answer in (
        await admin.patch("/v1/tenants/t1", json=shares),
        await admin.post("/v1/tenants", json={"id": "new", **shares}),
    ):
        message = error_of(answer, 400)["message"]
        assert "soft_kv_share (0.9)" in message and "hard_kv_share (0.1)" in message
    for name in ("max_concurrent", "max_adapter_bytes", "max_tokens_per_minute", "max_rank"):
        error = error_of(await admin.patch("/v1/tenants/t1", json={name: 10**12 + 1}), 400)
        assert error["param"] == name and "1000000000000 or less" in error["message"]
    assert world.tenants.get("t1") == before
    assert (await admin.patch("/v1/tenants/t1", json={"hard_kv_share": 0.1})).status_code == 200
    error_of(await admin.patch("/v1/tenants/t1", json={"soft_kv_share": 0.9}), 400)
    assert (await admin.post("/v1/tenants/t1/suspend")).status_code == 200


async def test_a_rotated_key_ends_within_two_polls(admin, world):
    assert 2 * world.config.ingress.registry_poll_s < 2, "the documents say: within two seconds"
    old = bearer(world.keys["t1"])
    assert (await admin.get("/v1/models", headers=old)).status_code == 200
    answer = (await admin.post("/v1/tenants/t1/rotate-key")).json()
    new = bearer(answer["key"])
    assert (await admin.get("/v1/models", headers=new)).status_code == 200
    await world.registry.two()
    assert (await admin.get("/v1/models", headers=old)).status_code == 401
