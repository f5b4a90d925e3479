"""A client request that was let in: its answer, and the events that make it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from deployments.ingress.generation import Generation
from deployments.ingress.token_limits import TokenTicket
from deployments.ingress.trials import Watch
from deployments.rest.answers import Answer, Event
from deployments.telemetry.logs import ContentLog
from engine.errors import LoraplexError
from router.admission import Ticket


class Job:
    """A request let in: its answer, and the events that make it."""

    def __init__(
        self,
        generation: Generation,
        answer: Answer,
        ticket: Ticket,
        tokens: TokenTicket,
        watch: Watch | None,
        content: ContentLog | None,
    ) -> None:
        """watch: of a canary's trial, None: of none. content: where the tenant wants it logged."""
        self.answer = answer
        self.ref = generation.ref
        self._generation = generation
        self._ticket = ticket
        self._watch = watch
        self._tokens = tokens
        self._content = content

    def batches(self) -> AsyncGenerator[list[Event], None]:
        """Close it in the end: that is what stops the replica."""
        generation = self._generation
        counted = generation.meter.over(self._count(generation.events()))
        return counted if self._watch is None else self._watch.over(counted)

    async def whole(self) -> dict[str, Any]:
        """The complete answer. Raises LoraplexErrors."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                self.answer.add(batch)
        return self.answer.whole()

    async def _count(
        self, events: AsyncGenerator[list[Event], None]
    ) -> AsyncGenerator[list[Event], None]:
        started: set[int] = set()
        trace = self._generation.trace
        try:
            async with aclosing(events) as batches:
                async for batch in batches:
                    for event in batch:
                        if event["i"] not in started:
                            started.add(event["i"])
                            self._ticket.started()
                            trace.event("first_token")
                        self._tokens.produced(event.get("tokens", 0))
                    if self._content is not None:
                        self._content.add(batch)
                    yield batch
            usage = self.answer.usage()
            trace.used(usage["prompt_tokens"], usage["completion_tokens"])
        except LoraplexError as error:
            self._tokens.failed(error)
            trace.fail(error.code, error.message)
            raise
        finally:
            if self._content is not None:
                self._content.write()
