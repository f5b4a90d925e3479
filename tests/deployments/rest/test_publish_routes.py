"""Publishing over REST: forms, uploads, probes."""

import asyncio
import socket
import time

import pytest

from deployments.ingress.ingress import create_app
from engine.adapters.store import CONFIG, TENSORS
from engine.errors import AdapterRejected, Unavailable
from tests.support.adapter_calls import FILES, FORM, until_version
from tests.support.ingress import (
    InProcess,
    LocalServer,
    bearer,
    error_of,
)


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
    await until_version(admin, world, f"bot@{kept['version'][:8]}", kept["version"])


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
