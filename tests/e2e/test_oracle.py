"""All held-out prompts on every adapter and on the base, at once, against transformers + PEFT."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import httpx
import pytest
from tokenizers import Tokenizer

from tests.support.formats import FORMATS
from tests.support.oracle import Oracle, Run
from tests.support.service import BASE, TENANT_OF, Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1200)]

NEAR_TIE = 1e-4
MAX_NEAR_TIES = 2  # of 240: at most 1 in 120


@dataclass(frozen=True)
class Answer:
    run: Run
    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int


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


def _same(answer: Answer) -> bool:
    run = answer.run
    return (answer.text, answer.completion_tokens, answer.finish) == (
        *(run.text, len(run.tokens), run.finish),
    )


def _gap_where_they_part(tokenizer: Tokenizer, answer: Answer) -> float:
    """The oracle's top-2 gap at the last token whose text so far the answer still begins with."""
    tokens = answer.run.tokens
    prefixes = (tokenizer.decode(tokens[:n]) for n in range(len(tokens) + 1))
    agreed = [n for n, text in enumerate(prefixes) if answer.text.startswith(text)]
    return float(answer.run.gaps[min(max(agreed), len(answer.run.gaps) - 1)])


def test_every_answer_equals_the_oracles(service: Service, answers: list[Answer]) -> None:
    assert len(answers) == 240
    tokenizer = Tokenizer.from_file(str(service.data / "model" / "tokenizer.json"))
    others = [answer for answer in answers if not _same(answer)]
    gaps = [_gap_where_they_part(tokenizer, answer) for answer in others]
    for answer, gap in zip(others, gaps, strict=True):
        print(f"prompt {answer.run.prompt} on {answer.run.adapter}, oracle's gap there {gap:g}:")
        print(f"  oracle  {answer.run.text!r} ({len(answer.run.tokens)} tokens)")
        print(f"  service {answer.text!r} ({answer.completion_tokens} tokens)")
    assert all(gap < NEAR_TIE for gap in gaps)
    assert len(others) <= MAX_NEAR_TIES


def test_prompts_have_the_oracles_length(answers: list[Answer]) -> None:
    assert all(answer.prompt_tokens == answer.run.prompt_tokens for answer in answers)


def test_formats_show_whose_adapter_answered(answers: list[Answer], oracle: Oracle) -> None:
    """Of 20 prompts each: the right adapter >= 19, each wrong one <= 2, the base none."""
    scores: Counter[tuple[str, str | None]] = Counter()
    for answer in answers:
        kind = oracle.prompts[answer.run.prompt]["adapter"]
        scores[kind, answer.run.adapter] += FORMATS[kind](answer.text)
    for kind in FORMATS:
        assert scores[kind, kind] >= 19, scores
        assert scores[kind, None] == 0, scores
        assert all(scores[kind, other] <= 2 for other in FORMATS if other != kind), scores
