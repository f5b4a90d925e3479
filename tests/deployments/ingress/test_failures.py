"""What clients are told when replicas fail, time runs out, or nobody waits any more."""

import asyncio
import json

import pytest
from fastapi import Request

from deployments.ingress.ingress import create_app
from deployments.registry.records import TenantRecord
from deployments.rest.edge import Edge, read_json
from engine.errors import AdapterUnavailable, ReplicaLost
from tests.support.ingress import (
    HANG,
    InProcess,
    ScriptedModel,
    World,
    announce,
    bearer,
    error_of,
    last,
)

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return {"model": "t1/bot", "messages": HELLO, **fields}


LOST = {"status": 503, "code": "replica_lost", "message": "lost", "retry_after_s": None}
COLD = {"status": 503, "code": "adapter_unavailable", "message": "no disk", "retry_after_s": 7.2}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("loss", [ReplicaLost("lost"), [{"i": 0, "error": LOST}], None])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_replica_lost_at_first_is_tried_again(client, world, stream, loss, times):
    scripts = [*times * [[loss] if loss else []], [[last(0, "fine")]]]
    world.model.script = lambda call: scripts.pop(0)
    response = await client.post(CHAT, json=chat(stream=stream))
    assert response.status_code == 200
    assert "fine" in response.text
    ids = [call["requests"][0]["id"] for call, *_ in world.model.calls]
    assert len(set(ids)) == times + 1
    assert all(s.cancelled.is_set() for s in world.model.streams)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replica_lost_each_time_is_an_error(client, world, stream):
    world.model.script = lambda call: [ReplicaLost("lost")]
    error = error_of(await client.post(CHAT, json=chat(stream=stream)), 503)
    assert error["code"] == "replica_lost"
    assert len(world.model.calls) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_a_core_died_under_is_not_taken_to_the_next(client, world, stream):
    world.model.script = lambda call: [[{"i": 0, "error": {**LOST, "code": "core_lost"}}]]
    error = error_of(await client.post(CHAT, json=chat(stream=stream)), 503)
    assert error["code"] == "core_lost"
    assert len(world.model.calls) == 1


async def test_a_replica_lost_in_mid_stream_is_an_error_event(client, world):
    world.model.script = lambda call: [[{"i": 0, "text": "a", "tokens": 1}], ReplicaLost("lost")]
    response = await client.post(CHAT, json=chat(stream=True))
    assert response.status_code == 200
    *_, error, end = response.text.split("\n\n")
    assert end == ""
    assert json.loads(error[6:])["error"]["code"] == "replica_lost"
    assert len(world.model.calls) == 1
    world.model.calls.clear()
    assert (await client.post(CHAT, json=chat())).status_code == 503
    assert len(world.model.calls) == 1


async def test_errors_of_a_replica_keep_their_status_and_are_not_retried(client, world):
    world.model.script = lambda call: [[{"i": 0, "error": COLD}]]
    for stream in (False, True):
        response = await client.post(CHAT, json=chat(stream=stream))
        assert error_of(response, 503)["message"] == "no disk"
        assert response.headers["retry-after"] == "8"
        assert "x-should-retry" not in response.headers


@pytest.mark.parametrize("begun", [False, True])
async def test_a_tenant_is_told_of_no_bucket(client, world, begun):
    error = {**COLD, "message": "bucket b is gone", "public": "the store failed"}
    first = [[{"i": 0, "text": "x", "tokens": 1}]] if begun else []
    world.model.script = lambda call: [*first, [{"i": 0, "error": error}]]
    answer = await client.post(CHAT, json=chat(stream=True))
    assert answer.status_code == (200 if begun else 503)
    assert "the store failed" in answer.text and "bucket" not in answer.text


async def test_clients_are_told_not_to_try_again_what_only_an_operator_mends(client, world):
    """C-S3-ERRORS: the cause reaches the client, as 503 and never as 404."""
    refused = {**COLD, "code": "store_forbidden", "retry_after_s": None}
    world.model.script = lambda call: [[{"i": 0, "error": refused}]]
    for stream in (False, True):
        response = await client.post(CHAT, json=chat(stream=stream))
        assert error_of(response, 503)["code"] == "store_forbidden"
        assert "retry-after" not in response.headers
        assert response.headers["x-should-retry"] == "false"
    world.model.script = lambda call: [AdapterUnavailable("gone")]
    assert error_of(await client.post(CHAT, json=chat()), 503)["code"] == "adapter_unavailable"
    assert len(world.model.calls) == 3


async def test_one_failed_choice_ends_the_request(client, world):
    world.model.script = lambda call: [[last(0, "a")], [{"i": 1, "error": COLD}]]
    assert (await client.post(CHAT, json=chat(n=2))).status_code == 503
    assert world.model.streams[0].cancelled.is_set()


async def test_unforeseen_errors_are_500_without_details(client, world):
    def script(call):
        raise RuntimeError("secret")

    world.model.script = script
    for stream in (False, True):
        response = await client.post(CHAT, json=chat(stream=stream))
        error = error_of(response, 500)
        assert "secret" not in response.text
        assert response.headers["x-request-id"] in error["message"]


async def test_an_aborted_request_is_never_an_empty_200(client, world):
    world.model.script = lambda call: [[last(0, "a", "abort")]]
    assert error_of(await client.post(CHAT, json=chat()), 503)["code"] == "aborted"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_ends_well_is_read_to_its_end(client, world, stream):
    """Ray counts a call that is cancelled before its end as failed."""
    await client.post(CHAT, json=chat(stream=stream))
    assert world.model.streams[0].ended


@pytest.mark.parametrize("end", [HANG, ReplicaLost("lost")])
async def test_a_complete_answer_does_not_depend_on_how_its_call_ends(client, world, end):
    world.model.script = lambda call: [[last(0, "fine")], end]
    assert (await client.post(CHAT, json=chat())).status_code == 200
    assert world.model.streams[0].cancelled.is_set()


async def test_timeout(tmp_path):
    world = World.build(tmp_path, ingress={"request_timeout_s": 0.05})
    world.model.script = lambda call: [[{"i": 0, "text": "a", "tokens": 1}], HANG]
    async with InProcess(world) as client:
        assert error_of(await client.post(CHAT, json=chat()), 504)["code"] == "timeout"
        response = await client.post(CHAT, json=chat(stream=True))
        assert '"code":"timeout"' in response.text
        assert all(s.cancelled.is_set() for s in world.model.streams)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before_first", [False, True])
async def test_a_client_that_goes_away_cancels_the_call(world, stream, before_first):
    steps = [HANG] if before_first else [[{"i": 0, "text": "a", "tokens": 1}], HANG]
    world.model.script = lambda call: steps
    app = create_app(world.parts())
    async with app.router.lifespan_context(app):
        gone = asyncio.Event()
        called = announce(world.model)
        body = json.dumps(chat(stream=stream)).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            pass

        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {world.keys['t1']}".encode())],
        }
        request = asyncio.create_task(app(scope, receive, send))
        await called.wait()
        gone.set()
        await asyncio.wait_for(request, 60)
        assert world.model.streams[0].cancelled.is_set()
        # Its place among the tenant's is free again, however often this happens.
        world.model.script = ScriptedModel().script


async def test_a_cancelled_server_task_cancels_the_call(world):
    """Ray Serve cancels the task of a request whose client went away."""
    world.model.script = lambda call: [HANG]
    async with InProcess(world) as client:
        called = announce(world.model)
        request = asyncio.create_task(client.post(CHAT, json=chat()))
        await called.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert world.model.streams[0].cancelled.is_set()


async def test_too_many_at_once_is_429_with_a_time(world):
    key = world.tenants.create(TenantRecord("small", max_concurrent=2, max_queued=2))[1]
    world.model.script = lambda call: [[{"i": 0, "text": "a", "tokens": 1}], HANG]
    async with InProcess(world) as client:
        body = chat(model="org/tiny")
        begun = [asyncio.Event(), asyncio.Event()]
        waiting = list(begun)
        generate = world.model.generate

        def count(*args, **kwargs):
            waiting.pop().set()
            return generate(*args, **kwargs)

        world.model.generate = count
        tasks = [
            asyncio.create_task(client.post(CHAT, json=body, headers=bearer(key))) for _ in begun
        ]
        await asyncio.gather(*(e.wait() for e in begun))
        response = await client.post(CHAT, json=body, headers=bearer(key))
        assert error_of(response, 429)["type"] == "rate_limit_error"
        assert int(response.headers["retry-after"]) >= 1
        error_of(
            await client.post(CHAT, json=chat(model="org/tiny", n=3), headers=bearer(key)), 400
        )
        # A tenant at its bound costs the others no template and no tokens.
        unread = chat(model="org/tiny", messages=[])
        error_of(await client.post(CHAT, json=unread, headers=bearer(key)), 429)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world.model.generate = generate
        world.model.script = ScriptedModel().script
        response = await client.post(CHAT, json=body, headers=bearer(key))
        assert response.status_code == 200


async def test_a_full_ingress_is_503(tmp_path):
    world = World.build(tmp_path, ingress={"max_in_flight": 1})
    world.model.script = lambda call: [HANG]
    async with InProcess(world) as client:
        called = announce(world.model)
        task = asyncio.create_task(client.post(CHAT, json=chat()))
        await called.wait()
        response = await client.post(CHAT, json=chat())
        assert error_of(response, 503)["code"] == "overloaded"
        assert response.headers["retry-after"] == "1"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_client_that_goes_while_it_sends_its_body_is_no_failure_of_ours():
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        await read_json(Request(scope, receive), 100)

    edge = Edge(app, new_id=lambda: "req-1")
    await edge({"type": "http", "method": "POST", "path": "/v1/x", "headers": []}, receive, send)
    assert sent == []
