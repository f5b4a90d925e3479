"""Why a request can't be served here at all. Standard library only.

The ingress checks the same and more; this is the core's own guard, so that whatever gets this far
ends as an answer and not as a crash, and whatever is taken in can run to its end.
"""

from __future__ import annotations

from engine.config import ModelConfig
from engine.errors import AdapterRejected, InvalidRequest, RequestError
from engine.types import Request

MAX_NUMBER = 1 << 30  # whatever a float32 or an int32 is made of it, it stays itself


def refusal(request: Request, model: ModelConfig, base_revision: str) -> RequestError | None:
    """The error of a request that this core can't serve whatever its state; else None."""
    error = _bad_length(request, model.max_model_len) or _bad_number(request, model.vocab_size)
    if error is not None:
        return error
    adapter = request.adapter
    if adapter is None:
        return None
    if adapter.base_revision != base_revision:
        return AdapterRejected(
            f"Adapter {adapter.name!r} was published for base revision {adapter.base_revision} and"
            f" this replica serves {base_revision}. Publish it for this base.",
            code="wrong_base",
        )
    if adapter.num_elements < 1:
        return AdapterRejected(f"Adapter {adapter.name!r} has no weights. Publish it again.")
    return None


def is_usable(weight: float) -> bool:
    """Whether a tenant may have this weight."""
    return 1 / MAX_NUMBER <= weight <= MAX_NUMBER


def _bad_length(request: Request, max_model_len: int) -> RequestError | None:
    if not request.prompt:
        return InvalidRequest("The prompt has no tokens. Send at least one.", param="prompt")
    if request.max_tokens < 1:
        message = f"max_tokens is {request.max_tokens}. It must be at least 1."
        return InvalidRequest(message, param="max_tokens")
    length = len(request.prompt) + request.max_tokens
    if length > max_model_len:
        return InvalidRequest(
            f"The prompt has {len(request.prompt)} tokens and max_tokens is {request.max_tokens}:"
            f" {length} in all, and the context holds {max_model_len}. Shorten one of them.",
            code="context_length_exceeded",
            param="prompt",
        )
    return None


def _bad_number(request: Request, vocab_size: int | None) -> RequestError | None:
    """What would fail in the middle of a pass, and so for everybody in it."""
    sampling, weight = request.sampling, request.tenant.weight
    bias_ids = [token for token, _ in sampling.logit_bias]
    for param, ids in (("prompt", request.prompt), ("logit_bias", bias_ids)):
        if vocab_size is not None and ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            message = f"A token id of {param} is not in the vocabulary, 0 to {vocab_size - 1}."
            return InvalidRequest(message, param=param)
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
        *(amount for _, amount in sampling.logit_bias),
    )
    if not all(abs(number) <= MAX_NUMBER for number in numbers):
        return InvalidRequest("A sampling parameter is too large, or not a number.")
    if not is_usable(weight):
        return InvalidRequest(f"Tenant {request.tenant.id!r} has the weight {weight}.")
    return None
