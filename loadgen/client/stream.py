"""One request: sent, its stream read piece by piece, and what became of it."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from loadgen.client.outcome import OK, UNFINISHED, Outcome
from loadgen.client.roster import Target
from loadgen.client.sse import EventParser
from loadgen.workloads.arrival import Arrival

MAX_DETAIL = 200
DONE = b"[DONE]"
PATHS = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a service is asked.

    url         up to and with its /v1
    kind        a key of PATHS
    ignore_eos  answers go on to the wanted length; for endpoints that know the field
    timeout_s   of a whole request
    """

    url: str
    kind: str = "completions"
    ignore_eos: bool = True
    timeout_s: float = 600.0

    @property
    def address(self) -> str:
        return self.url + PATHS[self.kind]

    def body(self, model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt}]}
            if self.kind == "chat"
            else {"prompt": prompt}
        )
        if self.ignore_eos:
            asked["ignore_eos"] = True
        return {
            "model": model,
            **asked,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


class Failed(Exception):
    """A request's error. kind: see `Outcome.status`."""

    def __init__(self, kind: str, detail: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail[:MAX_DETAIL]
        self.retry_after_s = retry_after_s


@dataclass(slots=True, eq=False)
class Answer:
    """What has come of a stream. Times are `clock`'s less `due_s` of it."""

    times: array[float] = field(default_factory=lambda: array("d"))
    chars: array[int] = field(default_factory=lambda: array("l"))
    usage: Mapping[str, Any] | None = None
    finished_s: float | None = None

    def take(self, data: bytes, now_s: float) -> None:
        """One event. Raises Failed for an error, and for what is no chunk of a completion."""
        try:
            chunk = json.loads(data.decode())  # of bytes, json guesses the encoding first: slow
            if error := chunk.get("error"):
                raise Failed(f"stream {_code(error)}", str(error.get("message", "")))
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk.get("choices", ()):
                if text := _text(choice):
                    self.times.append(now_s)
                    self.chars.append(len(text))
                if choice.get("finish_reason"):
                    self.finished_s = now_s
        except (ValueError, AttributeError, TypeError):
            raise Failed("bad answer", data.decode(errors="replace")) from None


class Asking:
    """One request on its way. `outcome` may be asked for at any time."""

    def __init__(
        self, index: int, arrival: Arrival, target: Target, due_s: float, clock: Callable[[], float]
    ) -> None:
        """due_s: on `clock`."""
        self._index, self._arrival, self._target = index, arrival, target
        self._due_s, self._clock = due_s, clock
        self._lag_s = 0.0
        self.answer = Answer()

    async def ask(self, http: aiohttp.ClientSession, endpoint: Endpoint, prompt: str) -> Outcome:
        """Send it and read all of it. Raises nothing but what cancels it."""
        body = endpoint.body(self._target.model, prompt, self._arrival.output_tokens)
        headers = {"authorization": f"Bearer {self._target.key}"} if self._target.key else {}
        if self._arrival.session:
            headers["x-session-id"] = self._arrival.session
        data = json.dumps(body).encode()
        headers["content-type"] = "application/json"
        self._lag_s = self._now()
        try:
            async with asyncio.timeout(endpoint.timeout_s):
                async with http.post(endpoint.address, data=data, headers=headers) as response:
                    if response.status != 200:
                        raise await _refusal(response)
                    await self._read(response)
        except Failed as failed:
            return self.outcome(failed.kind, failed.detail, failed.retry_after_s)
        except TimeoutError:
            return self.outcome("timeout", f"after {endpoint.timeout_s:g} s")
        except aiohttp.ClientConnectorError as error:
            return self.outcome("connect", str(error))
        except (aiohttp.ClientError, OSError) as error:
            kind = "cut" if self.answer.times else "disconnected"
            return self.outcome(kind, str(error) or type(error).__name__)
        return self.outcome(OK)

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        parser = EventParser()
        async for piece in response.content.iter_any():
            now_s = self._now()
            for data in parser.feed(piece):
                if data == DONE:
                    return
                self.answer.take(data, now_s)
        if self.answer.finished_s is None:
            raise Failed("cut", "the stream ended without its end mark")

    def outcome(
        self, status: str = UNFINISHED, detail: str = "", retry_after_s: float | None = None
    ) -> Outcome:
        """As it stands."""
        answer, arrival = self.answer, self._arrival
        usage = answer.usage or {}
        details = usage.get("prompt_tokens_details") or {}
        counted = usage.get("completion_tokens")
        # An answer of special tokens alone has no text: its end is the first that was seen of it.
        first_s = answer.times[0] if answer.times else answer.finished_s
        return Outcome(
            index=self._index,
            due_s=arrival.time_s,
            tenant=arrival.tenant,
            adapter=arrival.adapter,
            status=status,
            detail=detail[:MAX_DETAIL],
            lag_s=_micro(self._lag_s),
            end_s=_micro(self._now()),
            first_s=None if first_s is None else _micro(first_s),
            model=self._target.model,
            asked_input=arrival.input_tokens,
            asked_output=arrival.output_tokens,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            cached_tokens=int(details.get("cached_tokens") or 0),
            completion_tokens=len(answer.times) if counted is None else int(counted),
            counted="chunks" if counted is None else "usage",
            retry_after_s=retry_after_s,
            chunk_s=tuple(_micro(t) for t in answer.times),
            chunk_chars=tuple(answer.chars),
        )

    def _now(self) -> float:
        return self._clock() - self._due_s


async def _refusal(response: aiohttp.ClientResponse) -> Failed:
    """An error answer, in the API's own shape or not."""
    text = (await response.content.read(1 << 16)).decode(errors="replace")
    code, message = "", text
    try:
        error = json.loads(text)["error"]
        code, message = _code(error), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    kind = f"{response.status} {code}".strip()
    return Failed(kind, message, _seconds(response.headers.get("retry-after")))


def _code(error: Any) -> str:
    if not isinstance(error, dict):
        return "error"
    return str(error.get("code") or error.get("type") or "error")


def _text(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    return delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:  # a date: nobody's rate limiter sends one
        return None


def _micro(seconds: float) -> float:
    return round(seconds, 6)
