"""The official `openai` client, unmodified."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.formats import is_sql, is_ticket
from tests.support.service import BASE, Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

TICKET = {"role": "user", "content": "You charged my credit card three times."}


@pytest.fixture
def acme(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.keys["acme"]) as client:
        yield client


def test_chat(acme: openai.OpenAI) -> None:
    answer = acme.chat.completions.create(
        model="acme/support", messages=[TICKET], max_tokens=40, temperature=0
    )
    assert is_ticket(answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 5


def test_chat_streamed_says_the_same(acme: openai.OpenAI) -> None:
    whole = acme.chat.completions.create(
        model="support", messages=[TICKET], max_tokens=40, temperature=0
    )
    chunks = list(
        acme.chat.completions.create(
            model="support",
            messages=[TICKET],
            max_completion_tokens=40,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_choices_and_lists_of_prompts(acme: openai.OpenAI) -> None:
    answer = acme.completions.create(
        model=BASE,
        prompt=["One, two,", "The sky is"],
        n=2,
        max_tokens=4,
        temperature=0.7,
        seed=1,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16


def test_models_are_the_callers_with_their_parent(acme: openai.OpenAI) -> None:
    models = {model.id: model for model in acme.models.list()}
    assert set(models) == {BASE, "acme/support"}
    assert models["acme/support"].model_dump()["parent"] == BASE


def test_errors_are_the_clients_own_kinds(acme: openai.OpenAI, service: Service) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        acme.chat.completions.create(model="globex/sql", messages=[TICKET])
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        acme.chat.completions.create(model="support", messages=[TICKET], max_tokens=-1)
    with (
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="lp-wrong") as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


async def test_async_client_streams(service: Service) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{service.url}/v1", api_key=service.keys["globex"]
    ) as client:
        stream = await client.chat.completions.create(
            model="globex/sql",
            messages=[{"role": "user", "content": "How many cars are there?"}],
            max_tokens=40,
            temperature=0,
            stream=True,
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert is_sql(text)
