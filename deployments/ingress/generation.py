"""One client request at a replica: one streaming call, its events, its end. Knows no HTTP, no Ray.

The call is always cancelled in the end, so that pages and leases are free as soon as nobody waits
for the answer. A request whose replica is lost before anything was delivered is tried again, on
another; so is one that a core had not read when it died. One that it had is not, since that may be
what killed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from deployments.ingress.replicas import Replicas
from deployments.rest.answers import Event, raise_errors
from deployments.telemetry.request_metrics import UNMETERED, Meter
from deployments.telemetry.tracing import RequestTrace, untraced
from engine.errors import LoraplexError, ReplicaLost, RequestTimeout, Unavailable
from engine.types import WIRE_VERSION, AdapterRef, Request

logger = logging.getLogger(__name__)
FINISHES = frozenset({"stop", "length"})
REPLICA_LOST = ReplicaLost.code
END_S = 1.0
"""How long a complete call may take to end before it is cancelled."""
RETRY_AFTER_S = (0.0, 1.0)
"""Before each new attempt. The first finds another replica where the lost one is known to be gone;
one whose core has died still answers for a moment, and is gone after the second."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Sequences of one client request, all for `ref` (None: the base).

    timeout_s  from now to the last token
    meter      of the client request
    nonce      answers a new unguessable word: request ids must differ between clients that send
               the same x-request-id, or one could end another's
    trace      of the client request
    """

    replicas: Replicas
    requests: Sequence[Request]
    ref: AdapterRef | None
    timeout_s: float
    clock: Callable[[], float]
    nonce: Callable[[], str]
    trace: RequestTrace = field(default_factory=untraced)
    meter: Meter = UNMETERED

    @property
    def num_prompt(self) -> int:
        """Prompt tokens of all sequences."""
        return sum(len(request.prompt) for request in self.requests)

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Batches until every sequence has finished. Raises LoraplexErrors."""
        deadline = self.clock() + self.timeout_s
        delivered = False
        for pause_s in (*RETRY_AFTER_S, None):
            try:
                async with aclosing(self._attempt(deadline)) as batches:
                    async for batch in batches:
                        delivered = True
                        yield batch
                return
            except LoraplexError as error:
                self.meter.lost(error.code)
                if delivered or pause_s is None or error.code != REPLICA_LOST:
                    raise
                logger.warning("replica lost before its first token; trying another")
                self.trace.event("replica_lost")
                await asyncio.sleep(pause_s)

    async def _attempt(self, deadline: float) -> AsyncGenerator[list[Event], None]:
        word = self.nonce()
        call = {
            "v": WIRE_VERSION,
            "requests": [
                replace(r, id=f"{r.id}.{word}-{i}").to_wire() for i, r in enumerate(self.requests)
            ],
            "deadline_s": max(0.0, deadline - self.clock()),
            "about": self.trace.about["request_id"],
        }
        self.trace.send(call)
        stream = self.replicas.generate(
            call,
            ring_key="" if self.ref is None else self.ref.ring_key,
            adapter_key="" if self.ref is None else self.ref.key,
        )
        unfinished = set(range(len(self.requests)))
        try:
            batches = aiter(stream)
            while unfinished:
                batch = await self._next(batches, deadline)
                raise_errors(batch)
                for event in batch:
                    if "finish" in event:
                        _check_finish(event["finish"])
                        unfinished.discard(event["i"])
                if batch:
                    yield batch
            await _read_end(batches)
        finally:
            stream.cancel()
            self.trace.routed(call)

    async def _next(self, batches: AsyncIterator[list[Event]], deadline: float) -> list[Event]:
        try:
            async with asyncio.timeout(deadline - self.clock()):
                return await anext(batches)
        except TimeoutError:
            raise RequestTimeout(
                f"The answer was not complete within {self.timeout_s:g} s. Ask for fewer tokens,"
                " or try again when the service is less busy."
            ) from None
        except StopAsyncIteration:
            raise ReplicaLost("The replica ended the answer too early. Try again.") from None


async def _read_end(batches: AsyncIterator[list[Event]]) -> None:
    """See the call end by itself, so that it doesn't count as a cancelled one. The answer is
    complete already, so whatever happens to the call now is no matter."""
    with suppress(Exception):
        async with asyncio.timeout(END_S):
            await anext(batches)


def _check_finish(finish: str) -> None:
    if finish not in FINISHES:
        raise Unavailable("The service ended this request. Try again.", code="aborted")
