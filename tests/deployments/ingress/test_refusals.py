"""Who may do what, and the 4xx of every kind of bad input."""

import asyncio
import tracemalloc

import pytest
from fastapi import Request

from deployments.registry.records import TenantRecord
from deployments.rest.edge import read_json
from deployments.rest.openai_protocol import ChatBody, CompletionBody, parse
from engine.errors import InvalidRequest
from tests.support.ingress import CONTEXT, InProcess, World, bearer, error_of
from tests.support.memory_control import publish

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return {"model": "t1/bot", "messages": HELLO, **fields}


def text(prompt="hi", **fields):
    return {"model": "t1/bot", "prompt": prompt, **fields}


async def test_keys(client, world):
    error = error_of(await client.post(CHAT, json=chat(), headers={"authorization": ""}), 401)
    assert error["code"] == "missing_api_key"
    for header in ("Bearer lp-wrong", "Basic x", "Bearer", "Bearer " + "x" * 300):
        response = await client.post(CHAT, json=chat(), headers={"authorization": header})
        assert error_of(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    response = await client.post(CHAT, json=chat(), headers=bearer(world.keys["admin"]))
    assert error_of(response, 403)["code"] == "permission_denied"


async def test_a_suspended_tenant_is_told_so(world):
    record = TenantRecord("t1", flags=("suspended",))
    world.registry.put(record.key, record.to_value(), None)
    async with InProcess(world) as client:
        assert error_of(await client.post(CHAT, json=chat()), 403)["code"] == "tenant_suspended"


IMAGE = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
NOT_FOUND = [
    "nosuch", "t1/nosuch", "t2/bot", "T1/bot", "t1/bot@", "t1/bot@latest", "t1/bot@bbbbbbbb",
    "../../etc/passwd", "/abs", "a/../../b", "%2e%2e/", "x" * 300, "t\u04561/bot", "t1//bot",
    "bot\u0000", "org/tiny2", "ORG/tiny", "/bot", "t1/", " bot", "t1/bot/", "@",
]  # fmt: skip


@pytest.mark.parametrize("model", NOT_FOUND)
async def test_what_is_not_there_and_what_is_another_tenants_read_alike(client, world, model):
    """A-TRAVERSAL: a name is a key of the registry, and nothing else."""
    publish(world.registry, "t2", "other")
    response = await client.post(CHAT, json=chat(model=model))
    expected = {
        "message": f"The model '{model[:200]}' does not exist or you do not have access to it.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert error_of(response, 404) == expected
    assert world.model.calls == []


async def test_models_are_the_callers_own(world):
    publish(world.registry, "t2", "other")
    publish(world.registry, "t1", "abel", digest="c" * 64)
    async with InProcess(world) as client:
        data = (await client.get("/v1/models")).json()["data"]
        assert [(m["id"], m["parent"]) for m in data] == [
            ("org/tiny", None),
            ("t1/abel", "org/tiny"),
            ("t1/bot", "org/tiny"),
        ]
        for name in ("org/tiny", "t1/bot", "bot"):
            assert (await client.get(f"/v1/models/{name}")).json()["id"] == name
        error_of(await client.get("/v1/models/t2/other"), 404)
        everything = await client.get("/v1/models", headers=bearer(world.keys["admin"]))
        assert len(everything.json()["data"]) == 4


async def test_a_new_adapter_and_a_new_key_serve_at_once(client, world):
    publish(world.registry, "t1", "fresh")
    assert (await client.post(CHAT, json=chat(model="fresh"))).status_code == 200
    key = world.tenants.create(TenantRecord("t3"))[1]
    response = await client.post(CHAT, json=chat(model="org/tiny"), headers=bearer(key))
    assert response.status_code == 200


async def test_an_adapter_of_another_base_revision_is_not_answered_by_this_base(tmp_path):
    world = World.build(tmp_path)
    async with InProcess(world, base_revision="c" * 64) as client:
        assert error_of(await client.post(CHAT, json=chat()), 503)["code"] == "base_mismatch"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(messages=[]), "messages"),
        (chat(messages=[{"role": "user"}]), "messages[0].content"),
        (chat(messages=[{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (chat(messages=[{"role": [], "content": "x"}]), "messages[0].role"),
        (chat(messages=[{"role": "user", "content": [IMAGE]}]), "messages[0].content"),
        (chat(messages=HELLO * 3000), "messages"),
        (chat(messages="hi"), "messages"),
        ({"model": "t1/bot"}, "messages"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(max_tokens=-1), "max_tokens"),
        (chat(max_tokens="5"), "max_tokens"),
        (chat(max_tokens=1.5), "max_tokens"),
        (chat(max_tokens=10**9), "max_tokens"),
        (chat(max_completion_tokens=10**9), "max_completion_tokens"),
        (chat(n=0), "n"),
        (chat(n=129), "n"),
        (chat(temperature=-0.1), "temperature"),
        (chat(temperature=2.1), "temperature"),
        (chat(top_p=0), "top_p"),
        (chat(top_k=-2), "top_k"),
        (chat(min_p=1.1), "min_p"),
        (chat(presence_penalty=3), "presence_penalty"),
        (chat(repetition_penalty=0), "repetition_penalty"),
        (chat(seed="x"), "seed"),
        (chat(seed=1 << 70), "seed"),
        (chat(stop=""), "stop"),
        (chat(stop=["a", ""]), "stop"),
        (chat(stop=["a"] * 17), "stop"),
        (chat(stop_token_ids=[-1]), "stop_token_ids"),
        (chat(logit_bias={"300": 1}), "logit_bias"),
        (chat(logit_bias={"-1": 1}), "logit_bias"),
        (chat(logit_bias={"x": 1}), "logit_bias"),
        (chat(logit_bias={str(i): 1 for i in range(2000)}), "logit_bias"),
        (chat(logit_bias={"1": 101}), "logit_bias"),
        (chat(logit_bias={"1": "x"}), "logit_bias"),
        (chat(logit_bias={"1": True}), "logit_bias"),
        (chat(stream="yes"), "stream"),
        (chat(stream_options={"include_usage": True}), "stream_options"),
        (chat(model=""), "model"),
        (chat(model=7), "model"),
    ],
)  # fmt: skip
async def test_bad_chat_bodies_name_their_field(client, world, body, param):
    error = error_of(await client.post(CHAT, json=body), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert world.model.calls == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"functions": [{}]},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"logprobs": True},
        {"logprobs": 0},
        {"top_logprobs": 3},
        {"modalities": ["audio"]},
        {"guided_json": {}},
        {"best_of": 3},
        {"echo": True},
        {"chat_template": "{{ 1 }}"},
        {"min_tokens": 3},
    ],
)
async def test_what_is_not_served_is_refused_not_ignored(client, fields):
    error = error_of(await client.post(CHAT, json=chat(**fields)), 400)
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == next(iter(fields))


@pytest.mark.parametrize(
    "prompt",
    ["", [""], [], [[]], ["a", ""], [300], [-1], [1 << 40], [1.5], [["a"]], ["a", 1], None, {}],
)
async def test_bad_prompts(client, world, prompt):
    error = error_of(await client.post(TEXT, json=text(prompt)), 400)
    assert error["param"] == "prompt"
    assert world.model.calls == []


@pytest.mark.parametrize(
    ("body_type", "fields"),
    [
        (CompletionBody, {"prompt": [None] * 100_000}),
        (CompletionBody, {"prompt": [[None]] * 100_000}),
        (CompletionBody, {"prompt": "hi", "stop": [1] * 100_000}),
        (CompletionBody, {"prompt": "hi", "stop_token_ids": ["x"] * 100_000}),
        (CompletionBody, {"prompt": "hi", "logit_bias": {str(i): "x" for i in range(100_000)}}),
        (ChatBody, {"messages": [1] * 100_000}),
    ],
)
def test_a_bad_body_costs_no_more_memory_than_its_size(body_type, fields):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            body = parse(body_type, {"model": "m", **fields})
            body.token_bias(300)
            body.prompts()
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("length", "status"), [(63, 200), (64, 400), (65, 400), (3000, 400)])
async def test_the_context_is_named_with_both_numbers(client, length, status):
    response = await client.post(TEXT, json=text("a" * length))
    assert response.status_code == status
    if status == 400:
        error = error_of(response, 400)
        assert error["code"] == "context_length_exceeded"
        assert str(length) in error["message"]
        assert str(CONTEXT) in error["message"]


@pytest.mark.parametrize("is_chat", [False, True])
async def test_a_text_that_can_never_fit_is_not_tokenised(client, is_chat):
    hopeless = "a" * 10_000
    path, body = (TEXT, text(hopeless))
    if is_chat:
        path, body = (CHAT, chat(messages=[{"role": "user", "content": hopeless}]))
    error = error_of(await client.post(path, json=body), 400)
    assert error["code"] == "context_length_exceeded"
    assert "characters" in error["message"]


async def test_prompt_and_max_tokens_together_fit_the_context(client):
    assert (await client.post(TEXT, json=text("a" * 60, max_tokens=4))).status_code == 200
    error = error_of(await client.post(TEXT, json=text("a" * 60, max_tokens=5)), 400)
    assert "at most 4" in error["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"nonsense", b"[" * 100_000, b'{"model": NaN}', b"[]", b"3", b"null", b'"x"',
        b'{"model": "\xff"}', b'{"a": ' + b"9" * 5000 + b"}",
        rb'{"model": "t1/bot", "messages": [{"role": "user", "content": "\ud800"}]}',
    ],
)  # fmt: skip
async def test_malformed_bodies(client, world, raw):
    for path in (CHAT, TEXT):
        assert error_of(await client.post(path, content=raw), 400)
    assert world.model.calls == []


async def test_a_pair_of_surrogates_is_text(client):
    raw = rb'{"model": "t1/bot", "prompt": "\ud83d\ude00"}'
    assert (await client.post(TEXT, content=raw)).status_code == 200


async def test_body_limit(tmp_path):
    world = World.build(tmp_path, ingress={"max_body_bytes": 1000})
    async with InProcess(world) as client:
        for content in (b"x" * 1001, chunked(b"x" * 501, b"x" * 500)):
            error = error_of(await client.post(CHAT, content=content), 413)
            assert error["code"] == "request_too_large"


async def chunked(*parts):
    for part in parts:
        yield part


async def test_unknown_endpoints_speak_the_same_language(client):
    assert error_of(await client.post("/v1/responses", json={}), 404)["code"] == "unknown_endpoint"
    assert error_of(await client.post("/v1/embeddings", json={}), 404)
    assert error_of(await client.get(CHAT), 405)["code"] == "method_not_allowed"


async def test_a_model_without_a_chat_template_says_so(tmp_path):
    world = World.build(tmp_path)
    (world.config.base.path / "tokenizer_config.json").write_text("{}")
    async with InProcess(world) as client:
        assert error_of(await client.post(CHAT, json=chat()), 400)["code"] == "no_chat_template"
        assert (await client.post(TEXT, json=text())).status_code == 200


async def test_request_ids(client, world):
    response = await client.post(CHAT, json=chat(), headers={"x-request-id": "my-id.7"})
    assert response.headers["x-request-id"] == "my-id.7"
    assert response.json()["id"] == "chatcmpl-my-id.7"
    assert world.model.requests[0]["id"].startswith("my-id.7.")
    for odd in ("", "a b", "x" * 200, "<script>"):
        response = await client.post(CHAT, json=chat(), headers={"x-request-id": odd})
        assert response.headers["x-request-id"].startswith("req-")
    await asyncio.gather(
        *(client.post(CHAT, json=chat(n=2), headers={"x-request-id": "same"}) for _ in range(2))
    )
    ids = [r["id"] for call, *_ in world.model.calls[-2:] for r in call["requests"]]
    assert len(set(ids)) == 4


async def test_health_and_ready(client, world):
    assert (await client.get("/health", headers={"authorization": ""})).json() == {"status": "ok"}
    assert error_of(await client.get("/ready"), 503)["code"] == "not_ready"
    world.model.replies = [{"ready": False}, {"ready": True}]
    assert (await client.get("/ready")).json() == {"status": "ready", "replicas": 1}


async def test_a_body_that_never_comes_holds_nothing_for_ever():
    async def receive():
        await asyncio.Event().wait()

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(InvalidRequest, match="did not arrive within 0.01 s"):
        await read_json(request, 100, timeout_s=0.01)
