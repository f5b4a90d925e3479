"""The percentiles that a report has are those that a client of nothing but sockets measures."""

from __future__ import annotations

import asyncio
import json
import time
from urllib.parse import urlsplit

import pytest
import uvloop

from loadgen.client.roster import Binding, Target
from loadgen.client.run import Facts, Run
from loadgen.client.runner import Result, Runner, session
from loadgen.client.stream import Endpoint
from loadgen.report.slo import Slo
from loadgen.report.summary import summarise
from loadgen.workloads.arrival import Arrival, Schedule
from tests.support.stream_server import UNEQUAL_EVERY, UNEQUAL_TIMES, serving

FIRST_S, GAP_S, TOKENS, STREAMS = 0.15, 0.02, 60, 20
WITHIN = 0.05
MODEL = "m/unequal"


async def plain_client(url: str) -> tuple[float, list[float]]:
    """(seconds to the first token, gaps) of one stream, read line by line from a socket."""
    parts = urlsplit(url)
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": TOKENS, "stream": True})
    head = f"POST {parts.path}/completions HTTP/1.1\r\nhost: x\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    times = []
    async for line in reader:
        if b'" word"' in line:
            times.append(time.monotonic())
        if b"[DONE]" in line:
            break
    writer.close()
    return times[0] - began, [b - a for a, b in zip(times, times[1:], strict=False)]


async def both(url: str) -> tuple[list[tuple[float, list[float]]], Result]:
    """The plain client's streams and the generator's, at the same time."""
    arrivals = tuple(Arrival(round(0.1 * i, 6), "t", "a", 8, TOKENS) for i in range(STREAMS))
    schedule = Schedule("test", 1, {}, 2.0, arrivals)
    binding = Binding({("t", "a"): Target("", MODEL)})
    runner = Runner(schedule, binding, Endpoint(url), time.monotonic)

    async def one(delay_s: float) -> tuple[float, list[float]]:
        await asyncio.sleep(delay_s)
        return await plain_client(url)

    async with session() as http:
        run = asyncio.create_task(runner.run(http, None))
        plain = await asyncio.gather(*(one(0.55 + 0.1 * i) for i in range(STREAMS)))
        return plain, await run


def quantile(values: list[float], q: float) -> float:
    """Linear between neighbours."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@pytest.mark.slow
def test_percentiles_are_an_independent_client_s() -> None:
    with serving(FIRST_S, GAP_S) as url:
        plain, result = uvloop.run(both(url))
    facts = Facts("test", 1, {}, {}, "", STREAMS, 2.0, {}, url, "", result.wall_s, False, {})
    whole = summarise(Run(facts, result.outcomes, ()), Slo()).whole
    assert whole.ok == STREAMS and whole.gap is not None and whole.first is not None
    gaps = [gap for _, own in plain for gap in own]
    assert whole.gap.count == len(gaps) == STREAMS * (TOKENS - 1)
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert getattr(whole.gap, name) == pytest.approx(quantile(gaps, q), rel=WITHIN), name
    assert whole.gap.mean == pytest.approx(sum(gaps) / len(gaps), rel=WITHIN)
    assert whole.first.p50 == pytest.approx(quantile([f for f, _ in plain], 0.5), rel=WITHIN)
    # And both are what the server was told to do.
    assert whole.gap.p50 == pytest.approx(GAP_S, rel=0.25)
    assert whole.gap.p99 == pytest.approx(GAP_S * UNEQUAL_TIMES, rel=0.25)
    unequal = TOKENS // UNEQUAL_EVERY
    assert whole.gap.mean == pytest.approx(
        GAP_S * (TOKENS - 1 + unequal * (UNEQUAL_TIMES - 1)) / (TOKENS - 1), rel=0.25
    )


@pytest.mark.slow
def test_one_process_drives_two_thousand_streams() -> None:
    """All at once: 2,000 connections open, which the server holds until the last one is, then each
    with a token every half second."""
    num, tokens = 2000, 10
    arrivals = tuple(Arrival(round(i / 500, 6), "t", "a", 8, tokens) for i in range(num))
    schedule = Schedule("test", 1, {}, 4.0, arrivals)
    binding = Binding({("t", "a"): Target("", f"m/all-{num}")})
    most = 0

    async def run(url: str) -> Result:
        nonlocal most
        runner = Runner(schedule, binding, Endpoint(url), time.monotonic)

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, runner.tally.num_running)
                await asyncio.sleep(0.1)

        watching = asyncio.create_task(watch())
        async with session() as http:
            result = await runner.run(http, None)
        watching.cancel()
        return result

    with serving(0.5, 0.5) as url:
        result = uvloop.run(run(url))
    assert all(o.ok and o.completion_tokens == tokens for o in result.outcomes)
    assert most == num
