"""The calls that aren't over, and which of their streams each of the core's outputs is for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from deployments.replica.calls import Call, Pace
from deployments.replica.streams import Stream
from engine.errors import CoreLost, LoraplexError, ReplicaLost
from engine.messages import Abort, Input, SequenceOutput, Submit
from engine.types import FinishReason

LEAVING = ReplicaLost("The replica is about to end. Try again.", retry_after_s=1.0)
LOST = CoreLost("The replica's core died under the request. Try again.", retry_after_s=1.0)


class OpenCalls:
    """to_core  sends to the core; never waits"""

    def __init__(self, to_core: Callable[[Iterable[Input]], None], pace: Pace) -> None:
        self._to_core = to_core
        self._pace = pace
        self._streams: dict[str, tuple[Stream, Call]] = {}  # that the core works on
        self.num_open = 0
        """With those whose streams have ended, but whose last events nobody has taken yet."""

    def open(self, streams: list[Stream]) -> Call:
        """A new one; nothing is asked of the core before `submit`."""
        self.num_open += 1
        return Call(streams, self._pace, asyncio.get_running_loop())

    def submit(self, call: Call) -> None:
        for stream in call.streams:
            self._streams[stream.request.id] = (stream, call)
        self._to_core(Submit(stream.request) for stream in call.streams)

    def feed(self, outputs: Iterable[SequenceOutput]) -> None:
        """From the core, which learns here of stop strings that have matched."""
        stops: list[Input] = []
        for output in outputs:
            known = self._streams.get(output.request_id)
            if known is None:  # it was aborted while this was on its way
                continue
            stream, call = known
            if (event := stream.feed(output)) is not None:
                call.put(event)
            if stream.done:
                del self._streams[output.request_id]
            if stream.stopped:
                stops.append(Abort(output.request_id, FinishReason.STOP))
        self._to_core(stops)

    def fail(self, call: Call, error: LoraplexError) -> None:
        """End what is unfinished of this call with an error."""
        for stream in call.streams:
            if not stream.done:
                call.put(stream.fail(error.info()))
        self._abandon(call)

    def core_died(self, unread: frozenset[str]) -> None:
        """unread: ids of requests that it can't have died of. A call of nothing else ends like one
        that comes now, and may be tried elsewhere."""
        for call in {id(call): call for _, call in self._streams.values()}.values():
            is_unread = all(stream.request.id in unread for stream in call.streams)
            self.fail(call, LEAVING if is_unread else LOST)

    def close(self, call: Call) -> None:
        """Nobody reads this call any more."""
        self.num_open -= 1
        self._abandon(call)

    def _abandon(self, call: Call) -> None:
        """Abort what the core still works on for this call."""
        unfinished = [s.request.id for s in call.streams if s.request.id in self._streams]
        for request_id in unfinished:
            del self._streams[request_id]
        self._to_core(Abort(request_id) for request_id in unfinished)
