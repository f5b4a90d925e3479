"""The core's own guard: what would end a pass for everybody ends the request alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config import ModelConfig
from engine.refusal import refusal
from engine.types import AdapterRef, Request, SamplingParams, Tenant

MODEL = ModelConfig(path="", max_model_len=64, vocab_size=100)
GOOD = Request("r", Tenant("t"), None, (0, 99), 4, SamplingParams(logit_bias=((99, -100.0),)))
NAN, HUGE = float("nan"), 10**400


def test_ids_and_numbers_at_their_limits_are_taken() -> None:
    assert refusal(GOOD, MODEL, "base") is None


@pytest.mark.parametrize("prompt", [(1, 100), (-1, 1)])
def test_a_prompt_s_token_outside_the_vocabulary(prompt: tuple[int, ...]) -> None:
    error = refusal(replace(GOOD, prompt=prompt), MODEL, "base")
    assert error is not None and error.status == 400 and error.param == "prompt"
    # The fake device has no vocabulary.
    assert refusal(replace(GOOD, prompt=prompt), replace(MODEL, vocab_size=None), "base") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": HUGE},
        {"temperature": NAN},
        {"temperature": float("inf")},
        {"repetition_penalty": HUGE},
        {"logit_bias": ((100, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, NAN),)},
    ],
)
def test_a_sampling_number_that_no_row_can_hold(fields: dict[str, Any]) -> None:
    request = replace(GOOD, sampling=replace(GOOD.sampling, **fields))
    error = refusal(request, MODEL, "base")
    assert error is not None and error.status == 400


@pytest.mark.parametrize("weight", [0.0, -1.0, NAN, float("inf"), 5e-324])
def test_a_weight_that_accounts_cannot_divide_by(weight: float) -> None:
    assert refusal(replace(GOOD, tenant=Tenant("t", weight)), MODEL, "base") is not None


def test_an_adapter_without_weights() -> None:
    ref = AdapterRef("t", "a", "digest", "base", (), 0, 0, "uri")
    error = refusal(replace(GOOD, adapter=ref), MODEL, "base")
    assert error is not None and error.status == 422
