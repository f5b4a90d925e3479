"""A long stream of the running service, read in a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.service import BASE, Service

LONG = {
    "model": BASE,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "max_tokens": 400,
    "ignore_eos": True,
    "temperature": 0,
}


@dataclass
class Story:
    """`begun` once its first text is there. times_s: when each piece of text came."""

    begun: threading.Event = field(default_factory=threading.Event)
    text: str = ""
    error: dict[str, Any] | None = None
    finish: str | None = None
    done: bool = False
    times_s: list[float] = field(default_factory=list)

    def read(self, service: Service, tenant: str, max_tokens: object = LONG["max_tokens"]) -> None:
        body = {**LONG, "max_tokens": max_tokens, "stream": True}
        with (
            service.client(tenant) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            for line in answer.raise_for_status().iter_lines():
                self._take(line.removeprefix("data: "))

    def _take(self, data: str) -> None:
        if data == "[DONE]":
            self.done = True
        elif data:
            event = json.loads(data)
            self.error = event.get("error", self.error)
            for choice in event.get("choices", ()):
                if content := choice["delta"].get("content"):
                    self.text += content
                    self.times_s.append(time.monotonic())
                self.finish = choice["finish_reason"] or self.finish
            if self.text:
                self.begun.set()
