"""What a client is sent: whole answers and stream chunks, in the shapes of the OpenAI API.

Pure: events of the replica in, JSON out. The parts of a chunk that never change are written once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from engine.errors import ErrorInfo, LoraplexError

DONE = b"data: [DONE]\n\n"


class ErrorFields(TypedDict):
    status: int
    code: str
    message: str
    retry_after_s: float | None
    param: NotRequired[str | None]
    public: NotRequired[str | None]


class Event(TypedDict, total=False):
    """What happened to one sequence. `i` is its place in the call; the keys from `finish` on are
    in its last event; `error` stands alone."""

    i: int
    text: str
    tokens: int
    finish: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: ErrorFields


@dataclass(slots=True)
class Choice:
    """One sequence as told so far."""

    texts: list[str] = field(default_factory=list)
    begun: bool = False
    finish: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all parts of one answer share.

    model        the client's own words for it
    fingerprint  names the version that answers
    chat         the chat endpoint's shapes, not the completion's
    num_choices  n: choices of each prompt
    """

    id: str
    created: int
    model: str
    fingerprint: str
    chat: bool
    num_choices: int
    with_usage: bool = False


class Answer:
    """Collects events into one whole answer, or turns each batch of them into stream chunks."""

    def __init__(self, head: AnswerHead, num_sequences: int) -> None:
        self._head = head
        self._choices = [Choice() for _ in range(num_sequences)]
        self._unfinished = num_sequences
        self._prefix = self._chunk_prefix()
        self._suffix = ',"usage":null}\n\n' if head.with_usage else "}\n\n"

    @property
    def finished(self) -> bool:
        return self._unfinished == 0

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._take(event)

    def chunks(self, events: Iterable[Event]) -> bytes:
        """The server-sent events for a batch, maybe none."""
        parts: list[str] = []
        for event in events:
            choice = self._choices[event["i"]]
            first = not choice.begun
            self._take(event, keep=False)
            text = event.get("text", "")
            if first and self._head.chat:
                parts.append(self._chunk(event["i"], '"delta":{"role":"assistant","content":""}'))
            if text:
                parts.append(self._chunk(event["i"], self._text(text)))
            if "finish" in event:
                parts.append(self._chunk(event["i"], self._text(None), event["finish"]))
        return "".join(parts).encode()

    def ending(self) -> bytes:
        """After the last chunk: usage where the client asked for it, and the end mark."""
        if not self._head.with_usage:
            return DONE
        usage = json.dumps(self.usage(), separators=(",", ":"))
        return f'{self._prefix}"choices":[],"usage":{usage}}}\n\n'.encode() + DONE

    def whole(self) -> dict[str, Any]:
        """The answer of a request that isn't streamed."""
        head = self._head
        return {
            "id": head.id,
            "object": "chat.completion" if head.chat else "text_completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "choices": [self._whole_choice(i, c) for i, c in enumerate(self._choices)],
            "usage": self.usage(),
        }

    def usage(self) -> dict[str, Any]:
        """A prompt counts once, however many choices it has; of its sequences the first says how
        much of it was cached."""
        firsts = self._choices[:: self._head.num_choices]
        prompt = sum(c.prompt_tokens for c in firsts)
        completion = sum(c.completion_tokens for c in self._choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in firsts)},
        }

    def _take(self, event: Event, keep: bool = True) -> None:
        choice = self._choices[event["i"]]
        choice.begun = True
        if keep and event.get("text"):
            choice.texts.append(event["text"])
        if "finish" in event and choice.finish is None:
            choice.finish = event["finish"]
            choice.prompt_tokens = event["prompt_tokens"]
            choice.cached_tokens = event["cached_tokens"]
            choice.completion_tokens = event["completion_tokens"]
            self._unfinished -= 1

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.texts)
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self._head.chat
            else {"text": text}
        )
        return {"index": index, **content, "logprobs": None, "finish_reason": choice.finish}

    def _chunk_prefix(self) -> str:
        head = self._head
        shared = {
            "id": head.id,
            "object": "chat.completion.chunk" if head.chat else "text_completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }
        return "data: " + json.dumps(shared, separators=(",", ":"))[:-1] + ","

    def _chunk(self, index: int, content: str, finish: str | None = None) -> str:
        reason = "null" if finish is None else json.dumps(finish)
        return (
            f'{self._prefix}"choices":[{{"index":{index},{content},"logprobs":null,'
            f'"finish_reason":{reason}}}]{self._suffix}'
        )

    def _text(self, text: str | None) -> str:
        if not self._head.chat:
            return f'"text":{json.dumps(text or "")}'
        return '"delta":{}' if text is None else f'"delta":{{"content":{json.dumps(text)}}}'


def error_body(info: ErrorInfo, *, to_operator: bool = False) -> dict[str, Any]:
    """An error in the OpenAI API's shape."""
    told = info.message if to_operator else info.public or info.message
    return {
        "error": {
            "message": told,
            "type": _error_type(info.status),
            "param": info.param,
            "code": info.code,
        }
    }


def error_chunk(info: ErrorInfo) -> bytes:
    """An error in the midst of a stream: it ends there, without the end mark of a good one."""
    return f"data: {json.dumps(error_body(info), separators=(',', ':'))}\n\n".encode()


def raise_errors(events: Sequence[Event]) -> None:
    """Raises the first error among `events` as a LoraplexError."""
    for event in events:
        if "error" in event:
            raise error_of(event["error"])


def error_of(fields: ErrorFields) -> LoraplexError:
    """A replica's error as an exception of ours, with its own status and code."""
    error = LoraplexError(
        fields["message"],
        code=fields["code"],
        retry_after_s=fields.get("retry_after_s"),
        param=fields.get("param"),
        public=fields.get("public"),
    )
    error.status = fields["status"]
    return error


def _error_type(status: int) -> str:
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error"
    )
