"""What a process's log lines say of the request that it is at, and the contents of requests.

Prompts and answers are logged for those tenants alone whose flag `log_content` is set.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from deployments.rest.answers import Event
from engine.log_lines import fields

logger = logging.getLogger("loraplex.content")

_ABOUT: ContextVar[dict[str, Any] | None] = ContextVar("loraplex_request", default=None)
_NOTHING: Mapping[str, Any] = {}


def begin_request(request_id: str) -> dict[str, Any]:
    """The fields of this task's log lines, and those of the tasks that it starts, from now on.
    What is put into them later is in later lines."""
    about: dict[str, Any] = {"request_id": request_id}
    _ABOUT.set(about)
    return about


def about_request() -> Mapping[str, Any]:
    """For `engine.log_lines.log_as_json`."""
    return _ABOUT.get() or _NOTHING


Method = Callable[..., Awaitable[dict[str, Any]]]


def for_request(method: Method) -> Method:
    """A method that also takes `about`, as the caller's `about_request` has it: so its log lines
    are of the same request."""

    @functools.wraps(method)
    async def called(
        self: object, *args: Any, about: Mapping[str, Any] = _NOTHING
    ) -> dict[str, Any]:
        if about:
            begin_request(str(about.get("request_id", ""))).update(about)
        return await method(self, *args)

    return called


class ContentLog:
    """Of one request whose tenant wants it: its prompt, and its answers once they have ended.

    prompt: as the client sent it
    """

    def __init__(self, prompt: Any) -> None:
        self._prompt = prompt
        self._texts: dict[int, list[str]] = {}

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._texts.setdefault(event["i"], []).append(event.get("text", ""))

    def write(self) -> None:
        """One line."""
        answers = ["".join(self._texts[i]) for i in sorted(self._texts)]
        logger.info("content", extra=fields(prompt=self._prompt, answers=answers))
