"""When a call's messages leave: the first and the last at once, others spaced under load."""

from __future__ import annotations

import asyncio

from deployments.replica.calls import WINDOW_S, Call, Pace
from deployments.replica.detokenise import Vocabulary
from deployments.replica.streams import Event, Stream
from engine.types import Request, Tenant


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def text(index: int, content: str = "a") -> Event:
    return {"i": index, "text": content, "tokens": 1}


def streams(num: int) -> list[Stream]:
    request = Request("r", Tenant("acme"), None, (1,), 8)
    return [Stream(i, request, Vocabulary({})) for i in range(num)]


def busy_pace(longest_s: float) -> Pace:
    """One that has just seen a window of far more than the free rate."""
    clock = Clock()
    pace = Pace(longest_s, free_rate=100.0, clock=clock)
    pace.arrived()
    for _ in range(int(WINDOW_S * 1000)):
        pace.arrived()
    clock.now += WINDOW_S
    assert pace.interval_s() == longest_s
    return pace


def test_interval_grows_from_the_free_rate_to_twice_that() -> None:
    clock = Clock()
    pace = Pace(0.05, free_rate=400.0, clock=clock)
    intervals = []
    for rate in (100, 400, 600, 800, 5000, 0):
        pace.interval_s()
        for _ in range(int(rate * WINDOW_S)):
            pace.arrived()
        clock.now += WINDOW_S
        intervals.append(pace.interval_s())
    assert intervals == [0, 0, 0.025, 0.05, 0.05, 0]


async def test_at_low_rates_everything_leaves_at_once() -> None:
    loop = asyncio.get_running_loop()
    call = Call(streams(1), Pace(10.0, 1e9, loop.time), loop)
    for number in range(3):
        call.put(text(0, str(number)))
        assert await call.next() == [text(0, str(number))]


async def test_what_comes_while_nobody_reads_is_joined() -> None:
    loop = asyncio.get_running_loop()
    call = Call(streams(2), Pace(0.0, 1e9, loop.time), loop)
    for index in (0, 1, 0):
        call.put(text(index))
    assert await call.next() == [{"i": 0, "text": "aa", "tokens": 2}, text(1)]


async def test_under_load_later_events_wait_and_are_joined() -> None:
    loop = asyncio.get_running_loop()
    call = Call(streams(1), busy_pace(0.05), loop)
    call.put(text(0))
    assert await call.next() == [text(0)]  # the first leaves at once
    started = loop.time()
    call.put(text(0, "b"))
    call.put(text(0, "c"))
    assert await call.next() == [{"i": 0, "text": "bc", "tokens": 2}]
    assert loop.time() - started >= 0.04


async def test_the_end_of_a_stream_does_not_wait() -> None:
    loop = asyncio.get_running_loop()
    call = Call(streams(1), busy_pace(3600.0), loop)
    call.put(text(0))
    await call.next()
    reader = asyncio.create_task(call.next())
    await asyncio.sleep(0)
    call.put(text(0, "b"))
    await asyncio.sleep(0)
    assert not reader.done()
    call.put({**text(0, "c"), "finish": "stop"})
    assert await reader == [{"i": 0, "text": "bc", "tokens": 2, "finish": "stop"}]


async def test_an_error_does_not_wait() -> None:
    loop = asyncio.get_running_loop()
    call = Call(streams(1), busy_pace(3600.0), loop)
    call.put(text(0))
    await call.next()
    call.put(text(0, "b"))
    error = {"i": 0, "error": {"status": 503}}
    call.put(error)
    assert await call.next() == [text(0, "b"), error]


async def test_cancelled_reader_loses_nothing() -> None:
    loop = asyncio.get_running_loop()
    call = Call(streams(1), Pace(0.0, 1e9, loop.time), loop)
    reader = asyncio.create_task(call.next())
    await asyncio.sleep(0)
    reader.cancel()
    call.put(text(0))
    await asyncio.gather(reader, return_exceptions=True)
    assert await call.next() == [text(0)]
