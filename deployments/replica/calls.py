"""One call of the ingress: its streams' events on their way out, joined when there is much to say.

Each message through Ray costs some tenths of a millisecond in three processes, so under load the
messages of a call are spaced. The first leaves at once, and so does whatever ends a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from deployments.replica.streams import Event, Stream, join
from engine.errors import RequestTimeout

WINDOW_S = 0.25


@dataclass(slots=True)
class Pace:
    """How far apart a call's messages should be, by the rate of events of all calls.

    Nothing is joined up to `free_rate` events a second. Above, the interval grows with the rate and
    reaches `longest_s` at twice `free_rate`. Events are counted before they are joined, so that
    joining doesn't feed back; the rate is that of the last whole window.
    """

    longest_s: float
    free_rate: float
    clock: Callable[[], float]
    _window_start: float = 0.0
    _count: int = 0
    _rate: float = 0.0

    def arrived(self) -> None:
        """An event came in."""
        self._roll()
        self._count += 1

    def interval_s(self) -> float:
        self._roll()
        excess = self._rate / self.free_rate - 1.0
        return self.longest_s * min(1.0, max(0.0, excess))

    def _roll(self) -> None:
        now = self.clock()
        if now - self._window_start >= WINDOW_S:
            self._rate = self._count / (now - self._window_start)
            self._window_start = now
            self._count = 0


class Call:
    """The queue between the core's outputs and the generator that Ray reads. One event loop.

    `put` never waits; `next` waits until something may leave.
    """

    def __init__(self, streams: list[Stream], pace: Pace, loop: asyncio.AbstractEventLoop) -> None:
        self.streams = streams
        self._pace = pace
        self._loop = loop
        self._events: list[Event] = []
        self._not_before = 0.0
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        """Every stream has ended and every event has been taken."""
        return not self._events and all(stream.done for stream in self.streams)

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._pace.arrived()
        if "text" not in event or "finish" in event:
            self._urgent = True
        self._wake()

    async def next(self) -> list[Event]:
        """The events that may leave now, joined; waits for at least one."""
        while not self._may_leave():
            self._waiter = self._loop.create_future()
            self._schedule()
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._stop_timer()
        events = join(self._events)
        self._events.clear()
        self._urgent = False
        self._not_before = self._loop.time() + self._pace.interval_s()
        return events

    def _may_leave(self) -> bool:
        return bool(self._events) and (self._urgent or self._loop.time() >= self._not_before)

    def _wake(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if self._may_leave():
            self._waiter.set_result(None)
        else:
            self._schedule()

    def _schedule(self) -> None:
        """Look again when the interval is over, if something waits for that."""
        if self._events and self._timer is None:
            self._timer = self._loop.call_at(self._not_before, self._elapsed)

    def _elapsed(self) -> None:
        self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def late(deadline_s: float) -> RequestTimeout:
    """For a call that took longer than that, in seconds."""
    return RequestTimeout(f"The request did not finish within {deadline_s:g} s.")
