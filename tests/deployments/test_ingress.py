"""The REST side against scripted replicas: answers, streams, errors, isolation, disconnects."""

import asyncio
import json

import httpx
import pytest

from deployments.ingress import create_app
from deployments.registry.records import TenantRecord
from engine.errors import AdapterUnavailable, ReplicaLost
from tests.support.ingress import CONTEXT, HANG, ScriptedModel, World, publish

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def world(tmp_path):
    world = World.build(tmp_path)
    yield world
    world.registry.close()


@pytest.fixture
async def client(world):
    async with serve(world) as client:
        yield client


class serve:
    """The application of `world` with its lifespan, and a client of tenant t1."""

    def __init__(self, world, **changes):
        self._world = world
        self._app = create_app(world.parts(**changes))

    async def __aenter__(self):
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app),
            base_url="http://test",
            headers=bearer(self._world.keys["t1"]),
        )
        return self._client

    async def __aexit__(self, *error):
        await self._client.aclose()
        await self._lifespan.__aexit__(None, None, None)


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def chat(**fields):
    return {"model": "t1/bot", "messages": HELLO, **fields}


def text(prompt="hi", **fields):
    return {"model": "t1/bot", "prompt": prompt, **fields}


def events(response):
    """The decoded chunks of a stream; checks its frame and its end mark."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines]


def error_of(response, status):
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def last(i, text="", finish="stop", prompt=2, cached=0, completion=1):
    return {
        "i": i,
        "text": text,
        "tokens": 1,
        "finish": finish,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": completion,
    }


# Answers ------------------------------------------------------------------------------------------
async def test_chat(client, world):
    answer = (await client.post(CHAT, json=chat())).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "t1/bot"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one0 two", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len("<|user|>hi<|assistant|>") + 1
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 2,
        "total_tokens": prompt + 2,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    call, ring_key, adapter_key = world.model.calls[0]
    assert (ring_key, adapter_key) == ("t1/bot", "t1/" + "a" * 64)
    assert 0 < call["deadline_s"] <= world.config.ingress.request_timeout_s
    assert call["requests"][0]["stop_token_ids"] == (0,)


async def test_base_goes_without_keys(client, world):
    answer = (await client.post(CHAT, json=chat(model="org/tiny"))).json()
    assert answer["model"] == "org/tiny"
    assert world.model.calls[0][1:] == ("", "")
    assert world.model.requests[0]["adapter"] is None


async def test_model_is_echoed_as_it_was_asked(client):
    for model in ("bot", "t1/bot", "t1/bot@aaaaaaaa"):
        assert (await client.post(TEXT, json=text(model=model))).json()["model"] == model
        chunks = events(await client.post(CHAT, json=chat(model=model, stream=True)))
        assert {c["model"] for c in chunks} == {model}


@pytest.mark.parametrize(
    ("prompt", "lengths"),
    [
        ("hi", [2]),
        (["hi", "hello"], [2, 5]),
        ([5, 6, 7], [3]),
        ([[5, 6, 7], [8]], [3, 1]),
    ],
)
async def test_prompts_of_every_form(client, world, prompt, lengths):
    answer = (await client.post(TEXT, json=text(prompt))).json()
    assert [len(r["prompt"]) for r in world.model.requests] == lengths
    assert len(world.model.calls) == 1
    assert [c["index"] for c in answer["choices"]] == list(range(len(lengths)))
    assert answer["choices"][0]["text"] == "one0 two"


async def test_usage_counts_a_prompt_once_and_every_choice(client, world):
    answer = (await client.post(TEXT, json=text(["hi", "hello"], n=3))).json()
    assert len(answer["choices"]) == 6
    assert answer["usage"]["prompt_tokens"] == 2 + 5
    assert answer["usage"]["completion_tokens"] == 6 * 2
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_choices_have_seeds_of_their_own_that_repeat(client, world):
    async def seeds(**fields):
        await client.post(CHAT, json=chat(n=3, **fields))
        return [r["sampling"]["seed"] for r in world.model.requests]

    first, again, other, none = [
        await seeds(**f) for f in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {})
    ]
    assert first == again
    assert len({*first, *other, *none}) == 9
    assert all(0 <= s < 1 << 63 for s in first)


async def test_sampling_reaches_the_engine(client, world):
    await client.post(
        CHAT,
        json=chat(
            temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, presence_penalty=1,
            frequency_penalty=-1, repetition_penalty=1.1, logit_bias={"7": 5, "3": -100},
            stop=["a", "b"], stop_token_ids=[9], max_completion_tokens=7, max_tokens=9,
            cache_salt="s",
        ),
    )  # fmt: skip
    request = world.model.requests[0]
    sampling = dict(request["sampling"])
    sampling.pop("seed")
    assert sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": ((3, -100), (7, 5)),
    }
    assert request["stop"] == ("a", "b")
    assert request["stop_token_ids"] == (0, 9)
    assert request["max_tokens"] == 7
    assert request["salt"] == "s"


async def test_ignore_eos_and_the_rest_of_the_context(client, world):
    await client.post(TEXT, json=text("hello", ignore_eos=True))
    assert world.model.requests[0]["stop_token_ids"] == ()
    assert world.model.requests[0]["max_tokens"] == CONTEXT - 5


async def test_unknown_and_harmless_fields_are_tolerated(client):
    fields = {"user": "u", "metadata": {}, "new_in_2027": 1, "tools": [], "logprobs": False}
    fields |= {"response_format": {"type": "text"}, "store": None, "parallel_tool_calls": True}
    assert (await client.post(CHAT, json=chat(**fields))).status_code == 200


# Streams ------------------------------------------------------------------------------------------
async def test_chat_stream(client):
    chunks = events(await client.post(CHAT, json=chat(stream=True)))
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert [c["choices"][0]["delta"] for c in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "one0"},
        {"content": " two"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    assert all("usage" not in c for c in chunks)


async def test_completion_stream(client):
    chunks = events(await client.post(TEXT, json=text(["a", "b"], stream=True)))
    said = {0: "", 1: ""}
    for chunk in chunks:
        said[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert said == {0: "one0 two", 1: "one1 two"}
    assert {c["object"] for c in chunks} == {"text_completion"}


@pytest.mark.parametrize("n", [1, 3])
async def test_usage_chunk_only_where_asked_for(client, n):
    body = chat(stream=True, n=n, stream_options={"include_usage": True})
    *chunks, usage = events(await client.post(CHAT, json=body))
    assert all(c["usage"] is None and len(c["choices"]) == 1 for c in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2 * n
    assert sum(c["choices"][0]["finish_reason"] == "stop" for c in chunks) == n
    body = chat(stream=True, stream_options={"include_usage": False})
    assert all("usage" not in c for c in events(await client.post(CHAT, json=body)))


async def test_text_survives_as_it_is(client, world):
    said = 'line\n"quoted" \u2028 é 漢 \x00 data: [DONE]'
    world.model.script = lambda call: [[last(0, said)]]
    chunks = events(await client.post(CHAT, json=chat(stream=True)))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == said
    answer = (await client.post(CHAT, json=chat())).json()
    assert answer["choices"][0]["message"]["content"] == said


async def test_a_stream_that_says_nothing(client, world):
    world.model.script = lambda call: [[last(0, "", "length", completion=0)]]
    chunks = events(await client.post(CHAT, json=chat(stream=True)))
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, "length"]


# Errors of replicas -------------------------------------------------------------------------------
LOST = {"status": 503, "code": "replica_lost", "message": "lost", "retry_after_s": None}
COLD = {"status": 503, "code": "adapter_unavailable", "message": "no disk", "retry_after_s": 7.2}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("loss", [ReplicaLost("lost"), [{"i": 0, "error": LOST}], None])
async def test_a_replica_lost_at_first_is_tried_once_more(client, world, stream, loss):
    scripts = [[loss] if loss else [], [[last(0, "fine")]]]
    world.model.script = lambda call: scripts.pop(0)
    response = await client.post(CHAT, json=chat(stream=stream))
    assert response.status_code == 200
    assert "fine" in response.text
    ids = [call["requests"][0]["id"] for call, *_ in world.model.calls]
    assert len(set(ids)) == 2
    assert all(s.cancelled.is_set() for s in world.model.streams)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replica_lost_twice_is_an_error(client, world, stream):
    world.model.script = lambda call: [ReplicaLost("lost")]
    error = error_of(await client.post(CHAT, json=chat(stream=stream)), 503)
    assert error["code"] == "replica_lost"
    assert len(world.model.calls) == 2


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


async def test_timeout(tmp_path):
    world = World.build(tmp_path, ingress={"request_timeout_s": 0.05})
    world.model.script = lambda call: [[{"i": 0, "text": "a", "tokens": 1}], HANG]
    async with serve(world) as client:
        assert error_of(await client.post(CHAT, json=chat()), 504)["code"] == "timeout"
        response = await client.post(CHAT, json=chat(stream=True))
        assert '"code":"timeout"' in response.text
        assert all(s.cancelled.is_set() for s in world.model.streams)


# Clients that go away -----------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("before_first", [False, True])
async def test_a_client_that_goes_away_cancels_the_call(world, stream, before_first):
    steps = [HANG] if before_first else [[{"i": 0, "text": "a", "tokens": 1}], HANG]
    world.model.script = lambda call: steps
    app = create_app(world.parts())
    async with app.router.lifespan_context(app):
        gone = asyncio.Event()
        called = asyncio.Event()
        world.model.generate = hook(world.model, called)
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
        await asyncio.wait_for(request, 1)
        assert world.model.streams[0].cancelled.is_set()
        # Its place among the tenant's is free again, however often this happens.
        world.model.script = ScriptedModel().script


def hook(model, called):
    generate = model.generate

    def wrapped(*args, **kwargs):
        called.set()
        return generate(*args, **kwargs)

    return wrapped


async def test_a_cancelled_server_task_cancels_the_call(world):
    """Ray Serve cancels the task of a request whose client went away."""
    world.model.script = lambda call: [HANG]
    async with serve(world) as client:
        called = asyncio.Event()
        world.model.generate = hook(world.model, called)
        request = asyncio.create_task(client.post(CHAT, json=chat()))
        await called.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert world.model.streams[0].cancelled.is_set()


# Who may, and what is there -----------------------------------------------------------------------
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
    async with serve(world) as client:
        assert error_of(await client.post(CHAT, json=chat()), 403)["code"] == "tenant_suspended"


NOT_FOUND = [
    "nosuch", "t1/nosuch", "t2/bot", "T1/bot", "t1/bot@", "t1/bot@latest", "t1/bot@bbbbbbbb",
    "../../etc/passwd", "/abs", "a/../../b", "%2e%2e/", "x" * 300, "t\u04561/bot", "t1//bot",
    "bot\u0000", "org/tiny2", "ORG/tiny", "/bot", "t1/", " bot", "t1/bot/", "@",
]  # fmt: skip


@pytest.mark.parametrize("model", NOT_FOUND)
async def test_what_is_not_there_and_what_is_another_tenants_read_alike(client, world, model):
    publish(world.registry, "t2", "other")
    response = await client.post(CHAT, json=chat(model=model))
    expected = {
        "message": f"The model '{model[:200]}' does not exist or you do not have access to it.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert error_of(response, 404) == expected
    if model.isascii() and model.isprintable() and ".." not in model and "//" not in model:
        response = await client.get(f"/v1/models/{model.replace('%', '%25')}")
        if model != "/abs" and response.json().get("object") != "list":
            assert error_of(response, 404)["code"] in ("model_not_found", "unknown_endpoint")
    assert world.model.calls == []


async def test_models_are_the_callers_own(client, world):
    publish(world.registry, "t2", "other")
    publish(world.registry, "t1", "abel", digest="c" * 64)
    await asyncio.sleep(0)
    async with serve(world) as client:
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
    async with serve(world, base_revision="c" * 64) as client:
        assert error_of(await client.post(CHAT, json=chat()), 503)["code"] == "base_mismatch"


# Bad input ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(messages=[]), "messages"),
        (chat(messages=[{"role": "user"}]), "messages[0].content"),
        (chat(messages=[{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content"),
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
        (chat(logit_bias={"1": 101}), "logit_bias"),
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


@pytest.mark.parametrize(("length", "status"), [(63, 200), (64, 400), (65, 400), (3000, 400)])
async def test_the_context_is_named_with_both_numbers(client, length, status):
    response = await client.post(TEXT, json=text("a" * length))
    assert response.status_code == status
    if status == 400:
        error = error_of(response, 400)
        assert error["code"] == "context_length_exceeded"
        assert str(length) in error["message"]
        assert str(CONTEXT) in error["message"]


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
    async with serve(world) as client:
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
    async with serve(world) as client:
        assert error_of(await client.post(CHAT, json=chat()), 400)["code"] == "no_chat_template"
        assert (await client.post(TEXT, json=text())).status_code == 200


# Limits -------------------------------------------------------------------------------------------
async def test_too_many_at_once_is_429_with_a_time(world):
    key = world.tenants.create(TenantRecord("small", max_concurrent=2, max_queued=2))[1]
    world.model.script = lambda call: [[{"i": 0, "text": "a", "tokens": 1}], HANG]
    async with serve(world) as client:
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
    async with serve(world) as client:
        called = asyncio.Event()
        world.model.generate = hook(world.model, called)
        task = asyncio.create_task(client.post(CHAT, json=chat()))
        await called.wait()
        response = await client.post(CHAT, json=chat())
        assert error_of(response, 503)["code"] == "overloaded"
        assert response.headers["retry-after"] == "1"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# Request ids and probes ---------------------------------------------------------------------------
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
