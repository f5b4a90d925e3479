"""Publishing, naming and retiring over REST: by an admin, and by a tenant for itself."""

import asyncio
import json
import shutil
import socket
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from deployments.ingress.ingress import create_app
from deployments.orders.tier_orders import read_retry
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import EndedCanary
from deployments.registry.records import KeyRecord, Role, TenantRecord, adapter_key
from engine.adapters.store import CONFIG, TENSORS
from engine.errors import AdapterRejected, Unavailable
from tests.support.ingress import (
    HANG,
    InProcess,
    LocalServer,
    announce,
    bearer,
    error_of,
    events,
)
from tests.support.memory_control import publish, put_version

BOT = "/v1/adapters/t1/bot"
FORM = {"tenant": "t1", "name": "up"}
FILES = {
    "config": ("adapter_config.json", b'{"r": 8}'),
    "tensors": ("adapter_model.safetensors", b"s" * 3_000_000),
}


@pytest.fixture
async def admin(world):
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        yield client


@pytest.fixture
def two(world):
    """t1/two with two whole versions, the second in production."""
    record = AdapterRecord("t1", "two")
    versions = [put_version(world.store, "t1", "two", m) for m in (b"one", b"two")]
    for version in versions:
        record = record.with_version(version).promoted(version.ref.digest)
    world.registry.put(record.key, record.to_value(), None)
    return [v.ref.digest for v in versions]


def flag(world, tenant, *flags):
    record = world.tenants.get(tenant)
    for name in flags:
        record = record.with_flag(name, True)
    world.registry.put(record.key, record.to_value(), None)


async def version_of(client, world, model, tenant="t1", **headers):
    answer = await client.post(
        "/v1/completions",
        json={"model": model, "prompt": "x"},
        headers={**bearer(world.keys[tenant]), **headers},
    )
    return answer.headers.get("x-loraplex-adapter-version") or answer.status_code


async def until(client, world, model, wanted):
    async with asyncio.timeout(60):
        while await version_of(client, world, model) != wanted:
            await asyncio.sleep(0.01)


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
    await world.polls.two()
    assert await version_of(admin, world, "two") == two[0]
    body = {"version": two[1][:12], "expect": two[0]}
    assert (await admin.post("/v1/adapters/t1/two/promote", json=body)).json()["digest"] == two[1]
    await world.polls.two()
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
    await until(admin, world, "two@canary", two[0])
    sides = [await version_of(admin, world, "two", **{"x-session-id": f"s{n}"}) for n in range(100)]
    assert 15 <= sides.count(two[0]) <= 45
    again = [await version_of(admin, world, "two", **{"x-session-id": f"s{n}"}) for n in range(100)]
    assert again == sides
    wider = {"version": two[0], "as": "canary", "weight": 0.6}
    await admin.post("/v1/adapters/t1/two/promote", json=wider)
    await world.polls.two()
    for n, side in enumerate(sides):
        if side == two[0]:
            assert await version_of(admin, world, "two", **{"x-session-id": f"s{n}"}) == two[0]
    await admin.post("/v1/adapters/t1/two/promote", json={"version": "canary"})
    await until(admin, world, "two", two[0])
    await admin.post("/v1/adapters/t1/two/promote", json={"version": two[1], "as": "beta"})
    await until(admin, world, "two@beta", two[1])
    view = (await admin.delete("/v1/adapters/t1/two/aliases/beta")).json()
    assert list(view["aliases"]) == ["production"]
    error_of(await admin.delete("/v1/adapters/t1/two/aliases/production"), 409)
    error_of(await admin.delete("/v1/adapters/t1/two/aliases/beta"), 404)
    error_of(await admin.delete("/v1/adapters/t1/two/aliases/canary"), 404)


@pytest.mark.parametrize("field", ["user", "safety_identifier", "prompt_cache_key"])
async def test_the_body_names_the_session_too(admin, world, two, field):
    body = {"version": two[0], "as": "canary", "weight": 0.5}
    await admin.post("/v1/adapters/t1/two/promote", json=body)
    await until(admin, world, "two@canary", two[0])
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


# Publishing ---------------------------------------------------------------------------------------
async def test_publish_under_a_name_or_none(admin, world):
    body = {"tenant": "t1", "name": "bot", "folder": "x"}
    kept = (await admin.post("/v1/adapters", json={**body, "promote": False})).json()
    assert kept["digest"] == "a" * 64 and kept["versions"][0]["digest"] == kept["version"]
    canary = {**body, "folder": "y", "as": "canary", "weight": 0.05}
    view = (await admin.post("/v1/adapters", json=canary)).json()
    assert view["aliases"]["production"]["canary"] == view["version"]
    fresh = {**canary, "name": "fresh"}
    assert error_of(await admin.post("/v1/adapters", json=fresh), 409)["code"] == "no_production"
    await until(admin, world, f"bot@{kept['version'][:8]}", kept["version"])


async def test_an_upload_goes_through_the_store(admin, world):
    world.control.error = None
    form = {**FORM, "as": "production", "probes": "[]", "promote": "true"}
    answer = await admin.post("/v1/adapters", data=form, files=FILES)
    assert answer.status_code == 201, answer.text
    (order,) = world.control.orders
    assert (order.tenant, order.name, order.source.folder) == ("t1", "up", None)
    prefix = f"uploads/t1/{order.source.upload}"
    assert b"".join(world.store.read(f"{prefix}/{CONFIG}")) == b'{"r": 8}'
    assert world.store.size(f"{prefix}/{TENSORS}") == 3_000_000
    assert abs(int(order.source.upload.partition("-")[0]) - time.time()) < 600
    canary = {**FORM, "as": "canary", "weight": "0.5", "gate": "false"}
    view = (await admin.post("/v1/adapters", data=canary, files=FILES)).json()
    alias = view["aliases"]["production"]
    assert (alias["canary"], alias["gate"]) == (view["version"], False)


@pytest.mark.parametrize(
    ("form", "files", "status", "said"),
    [
        ({**FORM, "as": "DEADBEEF"}, FILES, 400, "not an alias"),
        ({**FORM, "folder": "x"}, FILES, 400, "one of folder"),
        ({**FORM, "probes": '[{"prompt": ""}]'}, FILES, 400, "probe"),
        ({**FORM, "as": "beta", "weight": "0.5"}, FILES, 400, "Only a canary"),
        (FORM, {"a": FILES["config"]}, 422, TENSORS),
        (FORM, {"a": FILES["config"], "b": ("adapter_model.bin", b"x")}, 422, "pickle"),
        (FORM, {**FILES, "c": FILES["config"]}, 400, "twice"),
        ({**FORM, "name": ["up", "other"]}, FILES, 400, "name is there twice"),
        ({**FORM, "probes": '[{"prompt": "\\ud800"}]'}, FILES, 400, "half of a surrogate"),
        ({**FORM, "probes": '[{"prompt": "a", "prompt": "b"}]'}, FILES, 400, "prompt is there"),
        ({**FORM, "name": b"\xed\xa0\x80"}, FILES, 400, "not UTF-8"),
        (FORM, {"a": ("../adapter_config.json", b"x")}, 422, CONFIG),
        ({**FORM, "weight": "x"}, FILES, 400, "weight"),
        ({**FORM, "name": "../up"}, FILES, 201, ""),
        ({**FORM, "tenant": "../t1"}, FILES, 400, "is not a name"),
        ({"name": "up"}, FILES, 400, "tenant"),
        ({**FORM, "nosuch": "1"}, FILES, 400, "nosuch"),
        ({**FORM, "base": "x" * 70_000}, FILES, 413, "base"),
    ],
)
async def test_bad_uploads_leave_nothing(admin, world, form, files, status, said):
    if status == 201:  # names are control's to judge
        world.control.error = AdapterRejected("no")
        error_of(await admin.post("/v1/adapters", data=form, files=files), 422)
        return
    error = error_of(await admin.post("/v1/adapters", data=form, files=files), status)
    assert said in error["message"]
    assert world.control.orders == [] and world.store.list("uploads/") == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "ends in the middle"),
        (b"--x\r\n", "ends in the middle"),
        (b"nonsense", "malformed"),
        (b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n', "ends in the middle"),
    ],
)
async def test_a_malformed_form_is_refused(admin, body, said):
    headers = {"content-type": "multipart/form-data; boundary=x"}
    error = error_of(await admin.post("/v1/adapters", content=body, headers=headers), 400)
    assert said in error["message"]
    headers = {"content-type": "multipart/form-data"}
    error_of(await admin.post("/v1/adapters", content=body, headers=headers), 400)


def test_an_upload_that_is_too_large_is_refused_before_it_comes(world):
    """3 GiB are announced and none of them sent; the answer says so at once, and the end of it."""
    section = world.config.publish.model_copy(update={"max_upload_bytes": 2_999_999})
    world.config = world.config.model_copy(update={"publish": section})
    head = (
        "POST /v1/adapters HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {world.keys['admin']}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 3221225472\r\n\r\n"
    )
    with LocalServer(create_app(world.parts())) as url:
        address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        with socket.create_connection(address, timeout=30) as client:
            client.sendall(head.encode())
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    for said in (b"3221225472", b"2999999", b"lower rank", b"publish.max_upload_bytes"):
        assert said in answer
    assert b"connection: close" in answer.lower()


async def test_an_upload_has_a_size_and_a_place(world):
    publish_section = world.config.publish.model_copy(
        update={"max_upload_bytes": 2_999_999, "max_uploads": 1}
    )
    world.config = world.config.model_copy(update={"publish": publish_section})
    async with InProcess(world) as admin:
        admin.headers.update(bearer(world.keys["admin"]))
        assert (await admin.get("/v1/adapters/limits")).json()["max_upload_bytes"] == 2_999_999
        error = error_of(await admin.post("/v1/adapters", data=FORM, files=FILES), 413)
        assert "lower rank" in error["message"]
        assert world.store.list("uploads/") == []
        going = asyncio.Event()

        async def slow():
            going.set()
            await asyncio.Event().wait()
            yield b""

        headers = {"content-type": "multipart/form-data; boundary=x"}
        holding = asyncio.create_task(admin.post("/v1/adapters", content=slow(), headers=headers))
        await going.wait()
        error_of(await admin.post("/v1/adapters", data=FORM, files=FILES), 503)
        holding.cancel()


# Probes -------------------------------------------------------------------------------------------
async def test_probes_run_pinned_and_their_answers_are_kept(admin, world):
    probes = [{"prompt": "hi", "max_tokens": 5, "expect": "two"}, {"prompt": "again"}]
    body = {"tenant": "t2", "name": "new", "folder": "x", "probes": probes}
    view = (await admin.post("/v1/adapters", json=body)).json()
    assert [p["answer"] for p in view["versions"][0]["probes"]] == ["one0 two"] * 2
    call, ring_key, adapter_key = world.model.calls[0]
    assert (ring_key, adapter_key) == ("t2/new", f"t2/{view['version']}")
    (request,) = call["requests"]
    assert (request["max_tokens"], request["sampling"]["temperature"]) == (5, 0)
    assert request["tenant"]["id"] == "t2" and request["adapter"]["digest"] == view["version"]


async def test_a_probe_that_fails_fails_the_publish(admin, world):
    before = world.registry.list("")
    body = {"tenant": "t2", "name": "new", "folder": "x"}
    wrong = {**body, "probes": [{"prompt": "hi", "expect": "three"}]}
    error = error_of(await admin.post("/v1/adapters", json=wrong), 422)
    assert error["code"] == "probe_failed" and "'one0 two'" in error["message"]
    world.model.script = lambda call: [Unavailable("no room", code="adapter_unavailable")]
    error = error_of(
        await admin.post("/v1/adapters", json={**body, "probes": [{"prompt": "hi"}]}), 503
    )
    assert error["message"] == "Probe 1 failed: no room"
    assert world.registry.list("") == before


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
