"""All held-out prompts on every adapter and on the base, at once, against transformers + PEFT."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tokenizers import Tokenizer

from tests.support.oracle import Answer, Oracle, Run, check_equal, check_formats
from tests.support.service import BASE, TENANT_OF, Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1200)]


async def _ask(client: httpx.AsyncClient, keys: dict[str, str], run: Run, oracle: Oracle) -> Answer:
    """The base is asked for by the three tenants in turn."""
    tenant = TENANT_OF.get(run.adapter) or sorted(TENANT_OF.values())[run.prompt % 3]
    answer = await client.post(
        "/v1/chat/completions",
        headers={"Authorization": f"Bearer {keys[tenant]}"},
        json={
            "model": BASE if run.adapter is None else f"{tenant}/{run.adapter}",
            "messages": [{"role": "user", "content": oracle.prompts[run.prompt]["prompt"]}],
            "max_tokens": oracle.max_tokens,
            "temperature": 0,
        },
    )
    body = answer.raise_for_status().json()
    (choice,) = body["choices"]
    usage = body["usage"]
    return Answer(
        run,
        choice["message"]["content"],
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


@pytest.fixture(scope="module")
def answers(service: Service, oracle: Oracle) -> list[Answer]:
    """All 240, sent at once."""

    async def ask_all() -> list[Answer]:
        limits = httpx.Limits(max_connections=len(oracle.runs))
        async with httpx.AsyncClient(base_url=service.url, timeout=900, limits=limits) as client:
            keys = service.keys
            return await asyncio.gather(*(_ask(client, keys, r, oracle) for r in oracle.runs))

    return asyncio.run(ask_all())


def test_every_answer_equals_the_oracles(service: Service, answers: list[Answer]) -> None:
    assert len(answers) == 240
    tokenizer = Tokenizer.from_file(str(service.data / "model" / "tokenizer.json"))
    check_equal(answers, tokenizer)


def test_prompts_have_the_oracles_length(answers: list[Answer]) -> None:
    assert all(answer.prompt_tokens == answer.run.prompt_tokens for answer in answers)


def test_formats_show_whose_adapter_answered(answers: list[Answer], oracle: Oracle) -> None:
    check_formats(answers, oracle)
