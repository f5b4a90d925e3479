"""The official client, unmodified, against the REST side over real HTTP."""

import openai
import pytest

from deployments.ingress.ingress import create_app
from engine.errors import ReplicaLost
from tests.support.ingress import LocalServer

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def url(world):
    with LocalServer(create_app(world.parts())) as url:
        yield url


@pytest.fixture
def client(world, url):
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key=world.keys["t1"], max_retries=0, timeout=30
    ) as client:
        yield client


def test_chat(client):
    answer = client.chat.completions.create(model="t1/bot", messages=HELLO, n=2)
    assert [c.message.content for c in answer.choices] == ["one0 two", "one1 two"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer._request_id.startswith("req-")


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model="t1/bot", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    *chunks, usage = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one0 two"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert usage.usage.completion_tokens == 2


def test_completions(client):
    answer = client.completions.create(model="org/tiny", prompt=["a", "b"])
    assert [c.text for c in answer.choices] == ["one0 two", "one1 two"]
    stream = client.completions.create(model="org/tiny", prompt="a", stream=True)
    assert "".join(c.choices[0].text for c in stream) == "one0 two"


def test_models(client):
    assert [m.id for m in client.models.list()] == ["org/tiny", "t1/bot"]
    assert client.models.retrieve("t1/bot").parent == "org/tiny"


def test_errors_have_their_classes(client, world, url):
    def ask(client=client, **changes):
        fields = {"model": "t1/bot", "messages": HELLO, **changes}
        return client.chat.completions.create(**fields)

    with pytest.raises(openai.NotFoundError) as error:
        ask(model="t2/bot")
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as error:
        ask(max_tokens=-1)
    assert error.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError):
        ask(tools=[{"type": "function", "function": {"name": "f"}}])
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="lp-wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        ask(other)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="t1/bot", input="x")


def test_an_error_in_mid_stream_is_raised(client, world):
    world.model.script = lambda call: [[{"i": 0, "text": "a", "tokens": 1}], ReplicaLost("lost")]
    stream = client.chat.completions.create(model="t1/bot", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="lost"):
        list(stream)
