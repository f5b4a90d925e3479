"""An OpenAI-compatible server of scripted streams: `python -m tests.support.stream_server`.

An asyncio protocol with hardly anything in it, so that what a client measures is the client. It
answers any POST with as many tokens as the body's max_tokens asks for, the first after `first_s`,
the others `gap_s` apart; how, the end of the model's name says:

    .../busy     429 with Retry-After 7
    .../cut      the connection ends after the second token
    .../event    an error event after the second token
    .../unequal  every tenth gap is ten times as long
    .../all-NUM  after the first token it waits until NUM streams of these are open

It prints its port, and a line when the first request comes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, cast

import uvloop

PROJECT = Path(__file__).parents[2]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BUSY = json.dumps({"error": {"message": "Too many.", "code": "tenant_busy"}}).encode()
UNEQUAL_EVERY, UNEQUAL_TIMES = 10, 10
ASKED = "asked"


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


TOKEN = _chunk(b'data: {"choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n')
EVENT = _chunk(b'data: {"error":{"message":"It broke.","code":"core_died"}}\n\n')


def ending(num_tokens: int) -> bytes:
    usage = {"prompt_tokens": 11, "completion_tokens": num_tokens}
    finish = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    return _chunk(finish + last + b"data: [DONE]\n\n") + b"0\r\n\r\n"


@cache
def _say_once(word: str) -> None:
    print(word, flush=True)


class Streams(asyncio.Protocol):
    """One connection."""

    def __init__(self, first_s: float, gap_s: float, held: list[Callable[[float], None]]) -> None:
        """held: what goes on once enough streams are open, all connections' own."""
        self._first_s, self._gap_s, self._held = first_s, gap_s, held
        self._loop = asyncio.get_running_loop()
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        head, found, rest = self._pending.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
        if len(rest) < length:
            return
        self._pending = rest[length:]
        body = json.loads(rest[:length])
        _say_once(ASKED)
        self._answer(body["model"].rpartition("/")[2], body["max_tokens"])

    def _answer(self, how: str, num_tokens: int) -> None:
        if how == "busy":
            head = b"HTTP/1.1 429 Too Many\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % len(BUSY) + BUSY)
        elif self._first_s == 0 and self._gap_s == 0 and how not in ("cut", "event"):
            self._transport.write(HEAD + TOKEN * num_tokens + ending(num_tokens))
        else:
            self._transport.write(HEAD)
            now = self._loop.time()
            self._loop.call_at(now + self._first_s, self._step, how, 1, num_tokens, now)

    def _step(self, how: str, number: int, num_tokens: int, due: float) -> None:
        """Times are added up from when they were due, so that delays don't gather."""
        due += self._first_s if number == 1 else self._gap(how, number)
        if self._transport.is_closing():
            return
        if number == 2 and how.startswith("all-"):
            self._hold(int(how.removeprefix("all-")), partial(self._go_on, how, number, num_tokens))
        else:
            self._go_on(how, number, num_tokens, due)

    def _hold(self, num: int, go_on: Callable[[float], None]) -> None:
        """Until `num` are held, which then go on together."""
        self._held.append(go_on)
        if len(self._held) == num:
            now = self._loop.time()
            for each in self._held:
                each(now)
            self._held.clear()

    def _go_on(self, how: str, number: int, num_tokens: int, due: float) -> None:
        if how == "cut" and number == 3:
            self._transport.close()
        elif how == "event" and number == 3:
            self._transport.write(EVENT + b"0\r\n\r\n")
        elif number < num_tokens:
            self._transport.write(TOKEN)
            at = due + self._gap(how, number + 1)
            self._loop.call_at(at, self._step, how, number + 1, num_tokens, due)
        else:
            self._transport.write(TOKEN + ending(num_tokens))

    def _gap(self, how: str, number: int) -> float:
        longer = how == "unequal" and number % UNEQUAL_EVERY == 0
        return self._gap_s * (UNEQUAL_TIMES if longer else 1)


@dataclass(frozen=True)
class StreamServer:
    """url: its own, up to and with /v1."""

    url: str
    said: IO[str]

    def wait_until_asked(self) -> None:
        """Until it has had a request. Once."""
        assert self.said.readline() == ASKED + "\n"


@contextmanager
def started(first_s: float = 0.0, gap_s: float = 0.0) -> Iterator[StreamServer]:
    """While it runs in a process of its own."""
    command = [sys.executable, "-m", "tests.support.stream_server", str(first_s), str(gap_s)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield StreamServer(f"http://127.0.0.1:{port}/v1", process.stdout)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def serving(first_s: float = 0.0, gap_s: float = 0.0) -> Iterator[str]:
    """Its URL."""
    with started(first_s, gap_s) as server:
        yield server.url


async def _serve(first_s: float, gap_s: float) -> None:
    loop = asyncio.get_running_loop()
    held: list[Callable[[float], None]] = []
    server = await loop.create_server(
        lambda: Streams(first_s, gap_s, held), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("first_s", type=float)
    parser.add_argument("gap_s", type=float)
    given = parser.parse_args()
    uvloop.run(_serve(given.first_s, given.gap_s))
