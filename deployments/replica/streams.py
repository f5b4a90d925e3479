"""A request's way from tokens to events: text, stop strings, counts.

An event is a plain dict, for it crosses Ray: `{"i", "text", "tokens"}`, where `tokens` counts the
output tokens that came since the stream's event before. A stream's last event also has `finish`,
`prompt_tokens`, `cached_tokens` and `completion_tokens`, or is `{"i", "error": {...}}`.
"""

from __future__ import annotations

from typing import Any

from deployments.replica.detokenise import Detokeniser, Vocabulary
from deployments.replica.stopping import StopStrings
from engine.errors import ErrorInfo
from engine.messages import SequenceOutput
from engine.types import FinishReason, Request

Event = dict[str, Any]


class Stream:
    """One request.

    index    its place in the client's call
    stopped  a stop string matched: the core does not know yet and must be told
    done     its last event has been made; nothing may be fed any more
    error    what ended it, where something did
    """

    def __init__(self, index: int, request: Request, vocabulary: Vocabulary) -> None:
        self.index = index
        self.request = request
        self.stopped = False
        self.done = False
        self.error: ErrorInfo | None = None
        self._detokeniser = Detokeniser(vocabulary)
        self._stops = StopStrings(request.stop)
        self._num_tokens = 0  # all so far
        self._num_told = 0  # of those, in events
        self._num_cached = 0

    def feed(self, output: SequenceOutput) -> Event | None:
        """What the client learns from one step: nothing while no text is certain."""
        self._num_cached = max(self._num_cached, output.num_cached)
        if output.finish is FinishReason.ERROR:
            return self.fail(output.error or _UNEXPLAINED)
        text = self._text(output.tokens)
        if self._stops.matched:
            self.stopped = output.finish is None
            return self._last(text, FinishReason.STOP)
        if output.finish is None:
            return self._event(text) if text else None
        text += self._stops.feed(self._detokeniser.finish())
        if self._stops.matched:
            return self._last(text, FinishReason.STOP)
        return self._last(text + self._stops.finish(), output.finish)

    def fail(self, error: ErrorInfo) -> Event:
        """End with an error."""
        self.done = True
        self.error = error
        return error_event(self.index, error)

    def _text(self, tokens: tuple[int, ...]) -> str:
        """Token by token, so that those after the one that completes a stop string don't count."""
        text = ""
        for token in tokens:
            self._num_tokens += 1
            text += self._stops.feed(self._detokeniser.feed((token,)))
            if self._stops.matched:
                break
        return text

    def _event(self, text: str) -> Event:
        tokens = self._num_tokens - self._num_told
        self._num_told = self._num_tokens
        return {"i": self.index, "text": text, "tokens": tokens}

    def _last(self, text: str, finish: FinishReason) -> Event:
        self.done = True
        return {
            **self._event(text),
            "finish": str(finish),
            "prompt_tokens": len(self.request.prompt),
            "cached_tokens": self._num_cached,
            "completion_tokens": self._num_tokens,
        }


_UNEXPLAINED = ErrorInfo(500, "internal_error", "The request failed in the engine.")


def error_event(index: int, error: ErrorInfo) -> Event:
    return {
        "i": index,
        "error": {
            "status": error.status,
            "code": error.code,
            "message": error.message,
            "retry_after_s": error.retry_after_s,
            "public": error.public,
        },
    }


def join(events: list[Event]) -> list[Event]:
    """Merge the events of each stream into one, streams in the order in which they first occur.

    An error stays apart from the text before it.
    """
    joined: dict[tuple[int, bool], Event] = {}
    for event in events:
        key = (event["i"], "error" in event)
        before = joined.get(key)
        if before is None:
            joined[key] = event
        else:
            text, tokens = before["text"] + event["text"], before["tokens"] + event["tokens"]
            joined[key] = {**event, "text": text, "tokens": tokens}
    return list(joined.values())
