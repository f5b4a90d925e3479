"""The bodies of /v1/chat/completions and /v1/completions.

What clients of the OpenAI API send, with the sampling fields that open servers added to it. A field
that we don't know is tolerated; one that we know and don't serve is refused unless its value asks
for nothing (`REFUSED`): nothing that changes the answer is ignored.

Bodies are checked on the event loop, so lists stop at their first bad item and have a length that
keeps the work small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployments.rest.wording import problems
from engine.errors import InvalidRequest

M = TypeVar("M", bound="GenerationBody")

MAX_STOP_CHARS = 1000
MAX_STOP_TOKENS = 64
MAX_LOGIT_BIAS = 1024
MAX_BIAS = 100
MAX_MESSAGES = 2048
MAX_TOKEN_ID = (1 << 31) - 1
ROLES = frozenset({"system", "developer", "user", "assistant"})

REFUSED: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "store": (False,),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "chat_template": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
}
"""Fields that we don't serve, with the values (besides null) that ask for nothing."""

Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    include_usage: bool = False


class GenerationBody(BaseModel):
    """What both endpoints take. null means absent. Checked against the model elsewhere."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False)

    model: str = Field(min_length=1, max_length=500)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    stop_token_ids: (
        Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None
    ) = None
    logit_bias: dict[str, Any] | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def session(self) -> str:
        """Whose request it is, as the client says it: what keeps it on one side of a canary."""
        return self.safety_identifier or self.user or self.prompt_cache_key or ""

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def output_limit(self) -> int | None:
        """max_completion_tokens, or else max_tokens; None: up to the end of the context."""
        return self.max_completion_tokens or self.max_tokens

    def stop_strings(self, max_stop: int) -> tuple[str, ...]:
        """Raises InvalidRequest for an empty or an overlong one, or too many."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(stop) > max_stop:
            raise InvalidRequest(f"At most {max_stop} stop strings are taken.", param="stop")
        for s in stop:
            if not s or len(s) > MAX_STOP_CHARS:
                raise InvalidRequest(
                    f"A stop string has 1 to {MAX_STOP_CHARS} characters.", param="stop"
                )
        return stop

    def token_bias(self, vocab_size: int) -> tuple[tuple[int, float], ...]:
        """(token id, bias) by id. Raises InvalidRequest for what is no token id, or no bias."""
        given = self.logit_bias or {}
        if len(given) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens.", param="logit_bias"
            )
        bias: dict[int, float] = {}
        for key, value in given.items():
            token = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"logit_bias key {key[:20]!r} is not a token id below {vocab_size}.",
                    param="logit_bias",
                )
            if type(value) not in (int, float) or not -MAX_BIAS <= value <= MAX_BIAS:
                raise InvalidRequest(
                    f"logit_bias of {key} must be a number of -{MAX_BIAS} to {MAX_BIAS}.",
                    param="logit_bias",
                )
            bias[token] = value
        return tuple(sorted(bias.items()))


class ChatBody(GenerationBody):
    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES, fail_fast=True)]
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def num_prompts(self) -> int:
        return 1

    def asked(self) -> Any:
        """What the client wants an answer to, as it sent it."""
        return self.messages

    def chat(self) -> list[dict[str, Any]]:
        """The messages as templates take them: content is one string, absent values are left out,
        `developer` is `system`. Raises InvalidRequest."""
        if not self.messages:
            raise InvalidRequest("messages is empty. Send at least one.", param="messages")
        return [_message(m, f"messages[{i}]") for i, m in enumerate(self.messages)]


class CompletionBody(GenerationBody):
    prompt: str | list[Any]

    def asked(self) -> Any:
        """What the client wants an answer to, as it sent it."""
        return self.prompt

    @property
    def num_prompts(self) -> int:
        """At least 1: an empty list is one bad prompt."""
        is_one = isinstance(self.prompt, str) or isinstance(next(iter(self.prompt), None), int)
        return 1 if is_one else max(1, len(self.prompt))

    def prompts(self) -> list[str | tuple[int, ...]]:
        """`num_prompts` texts or token lists. Raises InvalidRequest for none, or what is
        neither."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("prompt is an empty list.", param="prompt")
        if isinstance(self.prompt[0], int):
            return [_token_ids(self.prompt)]
        if all(isinstance(p, str) for p in self.prompt):
            return list(self.prompt)
        return [_token_ids(p) for p in self.prompt]


def parse(body_type: type[M], values: Any) -> M:
    """Validate a decoded body. Raises InvalidRequest that names the field."""
    if not isinstance(values, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        body = body_type.model_validate(values)
    except ValidationError as error:
        where, said = problems(error, body_type)[0]
        raise InvalidRequest(said, param=where.partition(".")[0] or None) from None
    for name, value in (body.model_extra or {}).items():
        if name in REFUSED and value is not None and not _harmless(value, REFUSED[name]):
            raise InvalidRequest(
                f"{name} is not supported by this service. Leave it out.",
                code="unsupported_parameter",
                param=name,
            )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest(
            "stream_options is only allowed when stream is true.", param="stream_options"
        )
    return body


def _token_ids(values: Any) -> tuple[int, ...]:
    if isinstance(values, list) and all(type(v) is int and 0 <= v <= MAX_TOKEN_ID for v in values):
        return tuple(values)
    raise InvalidRequest(
        "prompt must be a string, a list of strings, a list of token ids or a list of such lists.",
        param="prompt",
    )


def _harmless(value: Any, harmless: tuple[Any, ...]) -> bool:
    # 0 == False in Python: `logprobs: 0` asks for something.
    return any(type(value) is type(h) and value == h for h in harmless)


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(sorted(ROLES))}.", param=f"{where}.role"
        )
    if message.get("tool_calls") or message.get("function_call"):
        raise InvalidRequest(
            f"{where}: tool calls are not supported by this service.",
            code="unsupported_parameter",
            param=where,
        )
    kept = {k: v for k, v in message.items() if v is not None and k != "tool_calls"}
    kept["role"] = "system" if role == "developer" else role
    kept["content"] = _content(message.get("content"), f"{where}.content")
    return kept


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{where} must be a string or a list of text parts.", param=where)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{where}: only text parts are supported.",
                code="unsupported_parameter",
                param=where,
            )
        texts.append(text)
    return "\n".join(texts)
