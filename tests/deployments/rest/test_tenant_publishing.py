"""What a tenant does with its own key: publishing for itself, and what it isn't told."""

import asyncio
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from deployments.registry.alias import EndedCanary
from deployments.registry.records import KeyRecord, Role, TenantRecord, adapter_key
from engine.adapters.store import TENSORS
from tests.support.adapter_calls import FILES, FORM, flag
from tests.support.ingress import (
    HANG,
    InProcess,
    announce,
    bearer,
    error_of,
)
from tests.support.memory_control import publish


async def test_probes_of_a_tenants_own_publish_count_against_its_limits(world):
    record = TenantRecord("few", flags=("self_publish",), max_tokens_per_minute=40)
    key = bearer(world.tenants.create(record)[1])
    probes = [{"prompt": "abcd", "max_tokens": 1} for _ in range(3)]
    body = {"tenant": "few", "name": "new", "folder": "x", "probes": probes}
    async with InProcess(world) as client:
        admin = bearer(world.keys["admin"])
        assert (await client.post("/v1/adapters", json=body, headers=admin)).status_code == 201
        asked = len(world.model.calls)
        again = {**body, "name": "own"}
        error = error_of(await client.post("/v1/adapters", json=again, headers=key), 429)
        assert error["code"] == "tokens_per_minute" and "Probe" in error["message"]
        assert len(world.model.calls) < asked + len(probes)
        assert world.registry.get("adapter/few/own") is None
        said = {"model": "org/tiny", "prompt": "x" * 20, "max_tokens": 1}
        error_of(await client.post("/v1/completions", json=said, headers=key), 429)


async def test_probes_of_a_tenants_own_publish_are_among_its_requests(world):
    flags = ("self_publish",)
    key = bearer(world.tenants.create(TenantRecord("one", flags=flags, max_concurrent=1))[1])
    body = {"tenant": "one", "name": "new", "folder": "x", "probes": [{"prompt": "hi"}]}
    said = {"model": "org/tiny", "prompt": "x", "max_tokens": 1}
    answers, world.model.script = world.model.script, lambda call: [HANG]
    async with InProcess(world) as client:
        called = announce(world.model)
        first = asyncio.create_task(client.post("/v1/completions", json=said, headers=key))
        await called.wait()
        world.model.script = answers
        error_of(await client.post("/v1/adapters", json=body, headers=key), 429)
        admin = bearer(world.keys["admin"])
        assert (await client.post("/v1/adapters", json=body, headers=admin)).status_code == 201
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        again = {**body, "folder": "y"}
        assert (await client.post("/v1/adapters", json=again, headers=key)).status_code == 201


async def test_a_tenant_is_not_told_an_admins_key(admin, world, two):
    flag(world, "t1", "self_publish")
    body = {"tenant": "t1", "name": "two", "folder": "x", "base": "org/tiny"}
    digest = (await admin.post("/v1/adapters", json=body)).json()["version"]
    canary = {"version": two[0], "as": "canary"}
    await admin.post("/v1/adapters/t1/two/promote", json=canary)
    await admin.post("/v1/adapters/t1/two/rollback", json={"as": "canary"})
    await admin.delete(f"/v1/adapters/t1/two/versions/{two[1]}")
    await admin.put("/v1/adapters/t1/two/pin")
    hint = world.keys["admin"][:7]
    for path in ("/v1/adapters/t1/two", "/v1/pins"):
        told = await admin.get(path)
        assert hint in told.text and "operator" not in told.text
        told = await admin.get(path, headers=bearer(world.keys["t1"]))
        assert hint not in told.text and '"by":"an operator"' in told.text
    shown = (await admin.get("/v1/adapters/t1/two", headers=bearer(world.keys["t1"]))).json()
    assert shown["aliases"]["production"]["ended"][0]["why"] == "rolled back by an operator"
    by = {v["digest"]: (v["by"], v["retired_by"]) for v in shown["versions"]}
    assert by[digest] == ("an operator", None) and by[two[1]][1] == "an operator"


async def test_of_what_earlier_releases_wrote_a_tenant_is_told_its_own_keys_alone(world, two):
    """They wrote of an admin's key what they wrote of a tenant's."""
    flag(world, "t1", "self_publish")
    mine = KeyRecord("0" * 64, Role.TENANT, "t1", "lp-Mine...", 1.0, revoked_s=2.0)
    theirs = KeyRecord("1" * 64, Role.TENANT, "t2", "lp-Else...", 1.0)
    for key in (mine, theirs):
        world.registry.put(key.key, key.to_value(), None)
    entry = world.registry.get(adapter_key("t1", "two"))
    value = json.loads(json.dumps(entry.value))
    value["versions"][0] |= {"by": mine.hint, "retired_by": "lp-Adm1...", "asserted_by": mine.hint}
    value["versions"][1] |= {"by": "lp-Adm1...", "retired_by": theirs.hint}
    ended = asdict(EndedCanary(two[0], 3.0, f"rolled back by lp-Adm1..., then by {mine.hint}"))
    value["aliases"]["production"]["ended"] = [ended]
    world.registry.put(entry.key, value, entry.rev)
    async with InProcess(world) as client:
        shown = (await client.get("/v1/adapters/t1/two")).json()
        whole = await client.get("/v1/adapters/t1/two", headers=bearer(world.keys["admin"]))
    by = {v["digest"]: (v["by"], v["retired_by"], v["asserted_by"]) for v in shown["versions"]}
    assert by[two[0]] == ("lp-Mine...", "an operator", "lp-Mine...")
    assert by[two[1]][:2] == ("an operator", "an operator")
    (trial,) = shown["aliases"]["production"]["ended"]
    assert trial["why"] == "rolled back by an operator, then by lp-Mine..."
    assert "lp-Adm1..." in whole.text and "operator" not in whole.text


# A tenant's own key -------------------------------------------------------------------------------
async def test_a_tenant_publishes_for_itself_where_it_may(world):
    flag(world, "t1", "self_publish")
    async with InProcess(world) as client:  # with the key of t1
        answer = await client.post("/v1/adapters", json={"name": "mine", "prefix": "run-7"})
        assert answer.status_code == 201
        (order,) = world.control.orders
        assert (order.tenant, order.source.own, order.source.prefix) == ("t1", True, "run-7")
        assert order.by == world.keys["t1"][:7] + "..."
        shown = (await client.get("/v1/adapters")).json()["data"]
        assert all("uri" not in v for a in shown for v in a["versions"])
        asked = await client.get("/v1/adapters", headers=bearer(world.keys["admin"]))
        assert asked.json()["data"][0]["versions"][0]["uri"]
        assert [a["model"] for a in shown] == ["t1/bot", "t1/mine"]
        assert (await client.get("/v1/adapters/t1/mine")).status_code == 200
        upload = await client.post("/v1/adapters", data={"name": "up"}, files=FILES)
        assert upload.status_code == 201 and world.control.orders[-1].tenant == "t1"
        assert (await client.delete("/v1/adapters/t1/mine")).status_code == 200
        for path in ("/v1/tenants", "/v1/replicas"):
            error_of(await client.get(path), 403)


async def test_where_things_are_kept_is_for_operators(world, two):
    flag(world, "t1", "self_publish")
    root = Path(world.config.store_url.removeprefix("file://"))
    path = f"/v1/adapters/t1/two/versions/production/files/{TENSORS}"
    said = {}
    async with InProcess(world) as client:
        shutil.rmtree(root)
        for who in ("t1", "admin"):
            answers = [
                await client.get(path, headers=bearer(world.keys[who])),
                await client.post(
                    "/v1/adapters",
                    data=FORM,
                    files=FILES,
                    headers=bearer(world.keys[who]),
                ),
            ]
            said[who] = " ".join(error_of(a, 503)["message"] for a in answers)
    assert str(root) in said["admin"] and str(world.config.data_dir) in said["admin"]
    for secret in (str(world.config.data_dir), "adapters/t1", "uploads/t1"):
        assert secret not in said["t1"]
    assert "store's folder is gone" in said["t1"]


# A-TRAVERSAL
async def test_another_tenant_s_adapters_are_not_found_in_the_same_words(world):
    """A-TRAVERSAL."""
    flag(world, "t1", "self_publish")
    publish(world.registry, "t2", "there")
    before = world.registry.list("")
    async with InProcess(world) as client:
        for method, below, body in [
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/promote", {"version": "a" * 8}),
            ("POST", "/rollback", {}),
            ("DELETE", "/aliases/beta", None),
            ("DELETE", f"/versions/{'a' * 8}", None),
            ("GET", f"/versions/{'a' * 8}/files/adapter_config.json", None),
        ]:
            said = []
            for tenant, name in (("t2", "there"), ("t2", "nosuch"), ("t1", "nosuch")):
                path = f"/v1/adapters/{tenant}/{name}{below}"
                error = error_of(await client.request(method, path, json=body), 404)
                said.append(error["message"].replace(f"{tenant}/{name}", "X"))
            assert len(set(said)) == 1, said
        body = {"tenant": "t2", "name": "x", "folder": "y"}
        error_of(await client.post("/v1/adapters", json=body), 404)
        error_of(await client.post("/v1/adapters", data=FORM | {"tenant": "t2"}, files=FILES), 404)
        error_of(await client.get("/v1/adapters", params={"tenant": "t2"}), 404)
    assert world.registry.list("") == before
    assert world.control.orders == [] and world.store.list("uploads/") == []
