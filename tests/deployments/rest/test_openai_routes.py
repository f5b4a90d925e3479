"""Answers and streams of the OpenAI endpoints, against scripted replicas."""

import pytest

from tests.support.ingress import CONTEXT, events, last

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return {"model": "t1/bot", "messages": HELLO, **fields}


def text(prompt="hi", **fields):
    return {"model": "t1/bot", "prompt": prompt, **fields}


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


async def test_a_top_k_of_any_length_means_the_whole_vocabulary(client, world):
    await client.post(CHAT, json=chat(top_k=10**400))
    (request,) = world.model.requests
    assert 0 < request["sampling"]["top_k"] < 1 << 20


async def test_ignore_eos_and_the_rest_of_the_context(client, world):
    await client.post(TEXT, json=text("hello", ignore_eos=True))
    assert world.model.requests[0]["stop_token_ids"] == ()
    assert world.model.requests[0]["max_tokens"] == CONTEXT - 5


async def test_unknown_and_harmless_fields_are_tolerated(client):
    fields = {"user": "u", "metadata": {}, "new_in_2027": 1, "tools": [], "logprobs": False}
    fields |= {"response_format": {"type": "text"}, "store": None, "parallel_tool_calls": True}
    assert (await client.post(CHAT, json=chat(**fields))).status_code == 200


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
