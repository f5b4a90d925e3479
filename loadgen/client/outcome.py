"""What became of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

OK = "ok"
UNFINISHED = "unfinished"
NOT_SENT = "not sent"
"""Kinds of `status` besides those of errors."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds are from the moment the request was due, not from when it was sent: a generator or a
    server that holds a request up is not hidden by it.

    due_s        from the run's start
    status       `ok`, `unfinished` (it still ran when the run ended), `not sent`, or the kind of
                 error: `connect`, `disconnected`, `cut`, `timeout`, `bad answer`, `429 code`,
                 `stream code`
    detail       an error's words, shortened
    lag_s        from due to the moment it was sent: the generator's own fault
    first_s      to the first text of the answer; None where none came
    end_s        to the end, whatever it was
    chunk_s      when each piece with text came, in microseconds
    chunk_chars  its length
    prompt_tokens, cached_tokens, completion_tokens  by the server's usage; without one the
                 completion counts a token for each piece, and `counted` says so
    retry_after_s  as an error's header asked; None where it didn't
    """

    index: int
    due_s: float
    tenant: str
    adapter: str
    status: str
    lag_s: float
    end_s: float
    first_s: float | None = None
    detail: str = ""
    model: str = ""
    asked_input: int = 0
    asked_output: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    counted: str = "usage"
    retry_after_s: float | None = None
    chunk_s: tuple[float, ...] = ()
    chunk_chars: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces of text as they came."""
        return [b - a for a, b in zip(self.chunk_s, self.chunk_s[1:], strict=False)]

    @property
    def token_s(self) -> float | None:
        """Mean time of a token after the first; None where there was no second."""
        if self.first_s is None or self.completion_tokens < 2 or len(self.chunk_s) < 2:
            return None
        return (self.chunk_s[-1] - self.first_s) / (self.completion_tokens - 1)

    def served(self) -> list[tuple[float, int]]:
        """(seconds from the run's start, tokens) of each piece: the completion's tokens, spread by
        the length of the text. What was sent before an error counts."""
        total_chars, total = sum(self.chunk_chars), self.completion_tokens
        done_chars, done, parts = 0, 0, []
        for at, chars in zip(self.chunk_s, self.chunk_chars, strict=True):
            done_chars += chars
            upto = round(total * done_chars / total_chars)
            parts.append((self.due_s + at, upto - done))
            done = upto
        return parts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        for name in ("chunk_s", "chunk_chars"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)
