"""One client request to the engine's requests: one a prompt and choice, checked against the model.

Pure. Choices of one prompt are next to each other, in the order in which they are answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deployments.rest.openai_protocol import GenerationBody
from engine.errors import InvalidRequest
from engine.types import AdapterRef, Request, SamplingParams, Tenant

_SEED_BITS = 63
"""Seeds fit a signed 64-bit integer, whatever draws from them."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the model takes. max_model_len: tokens of prompt and output together."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_stop: int


def expand(
    body: GenerationBody,
    prompts: Sequence[tuple[int, ...]],
    *,
    tenant: Tenant,
    ref: AdapterRef | None,
    limits: ModelLimits,
    draw_seed: Callable[[], int],
    request_id: str,
) -> list[Request]:
    """The requests, all with the id `request_id`. Raises InvalidRequest."""
    stop = body.stop_strings(limits.max_stop)
    bias = body.token_bias(limits.vocab_size)
    seed = draw_seed() if body.seed is None else body.seed
    eos = () if body.ignore_eos else limits.eos_token_ids
    stop_ids = tuple(dict.fromkeys((*eos, *(body.stop_token_ids or ()))))
    max_tokens = [_max_tokens(body, prompt, limits) for prompt in prompts]
    return [
        Request(
            id=request_id,
            tenant=tenant,
            adapter=ref,
            prompt=prompt,
            max_tokens=most,
            sampling=_sampling(body, bias, _choice_seed(seed, choice), limits.vocab_size),
            stop=stop,
            stop_token_ids=stop_ids,
            salt=body.cache_salt or "",
        )
        for prompt, most in zip(prompts, max_tokens, strict=True)
        for choice in range(body.num_choices)
    ]


def _max_tokens(body: GenerationBody, prompt: tuple[int, ...], limits: ModelLimits) -> int:
    name = "messages" if hasattr(body, "messages") else "prompt"
    if not prompt:
        raise InvalidRequest("The prompt has no tokens. Send some text.", param=name)
    if (worst := max(prompt)) >= limits.vocab_size:
        raise InvalidRequest(
            f"Token id {worst} is not below the vocabulary's size {limits.vocab_size}.", param=name
        )
    room = limits.max_model_len - len(prompt)
    if room < 1:
        raise InvalidRequest(
            f"The prompt has {len(prompt)} tokens; this model's context is"
            f" {limits.max_model_len} tokens, of which at least one is for the answer."
            " Shorten it.",
            code="context_length_exceeded",
            param=name,
        )
    wanted = body.output_limit()
    if wanted is not None and wanted > room:
        raise InvalidRequest(
            f"The prompt has {len(prompt)} tokens and max_tokens asks for {wanted} more; this"
            f" model's context is {limits.max_model_len} tokens. Ask for at most {room}.",
            code="context_length_exceeded",
            param="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        )
    return room if wanted is None else wanted


def _sampling(
    body: GenerationBody, bias: tuple[tuple[int, float], ...], seed: int, vocab_size: int
) -> SamplingParams:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return SamplingParams(
        temperature=given(body.temperature, 1.0),
        top_p=given(body.top_p, 1.0),
        top_k=min(max(0, body.top_k or 0), vocab_size),  # a body's may have hundreds of digits
        min_p=given(body.min_p, 0.0),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        repetition_penalty=given(body.repetition_penalty, 1.0),
        seed=seed,
        logit_bias=bias,
    )


def _choice_seed(seed: int, choice: int) -> int:
    """Differs by choice, repeats by (seed, choice): a prompt answers alike alone and in a list."""
    digest = hashlib.sha256(f"{seed}/{choice}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> (64 - _SEED_BITS)
