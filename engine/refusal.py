"""Why a request can't be served here at all. Standard library only.

The ingress checks the same and more; this is the core's own guard, so that whatever gets this far
ends as an answer and not as a crash, and whatever is taken in can run to its end.
"""

from __future__ import annotations

from engine.errors import AdapterRejected, InvalidRequest, RequestError
from engine.types import Request


def refusal(request: Request, max_model_len: int, base_revision: str) -> RequestError | None:
    """The error of a request that this core can't serve whatever its state; else None."""
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
    adapter = request.adapter
    if adapter is not None and adapter.base_revision != base_revision:
        return AdapterRejected(
            f"Adapter {adapter.name!r} was published for base revision {adapter.base_revision} and"
            f" this replica serves {base_revision}. Publish it for this base.",
            code="wrong_base",
        )
    return None
