"""An HTTP proxy that does to a store's clients what networks and stores do: slow, cut, refuse.

It runs in a thread of its own, in front of a real server. Signatures stay valid, since clients sign
for the proxy's host and the request is passed on as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

PIECE = 16 << 10
STATUS = {301: "Moved Permanently", 400: "Bad Request", 403: "Forbidden", 404: "Not Found"}


@dataclass(frozen=True)
class Fault:
    """What happens to a request.

    latency_s      before its answer begins
    bytes_per_s    of the body
    cut_after      bytes of the body; then the connection ends, by FIN or RST
    silent_after   bytes of the body; then nothing more comes (0: a black hole after the head)
    black_hole     no answer at all
    answer         (status, S3's error code): said in the store's place
    headers        of that answer
    flip           offset of a byte of the body that is changed
    longer_by      added to the Content-Length, which the body does not keep
    """

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    cut_after: int | None = None
    cut_by: Literal["fin", "rst"] = "fin"
    silent_after: int | None = None
    black_hole: bool = False
    answer: tuple[int, str] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    flip: int | None = None
    longer_by: int = 0


@dataclass
class Seen:
    """A request, and what of its answer's body was passed on."""

    method: str
    path: str
    range: str | None
    if_match: str | None
    status: int = 0
    num_bytes: int = 0


@dataclass
class Rule:
    fault: Fault
    method: str | None
    key: str
    times: int | None


@dataclass
class FaultProxy:
    """upstream: the server's (host, port). Rules are tried in order; the first that matches, and
    has not been used up, applies. Without one, a request passes unharmed."""

    upstream: tuple[str, int]
    endpoint: str = ""
    seen: list[Seen] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    on_request: Callable[[Seen], None] = lambda seen: None
    """Called, in the proxy's thread, before a request is passed on."""

    def add(
        self, fault: Fault, *, key: str = "", method: str | None = "GET", times: int | None = None
    ) -> None:
        """To requests of `method` (None: all) whose path contains `key`, the first `times`."""
        self.rules.append(Rule(fault, method, key, times))

    def heal(self) -> None:
        self.rules.clear()

    def num_gets(self, key: str = "") -> int:
        """GETs of objects whose key contains this."""
        return sum(s.method == "GET" and key in s.path and "?" not in s.path for s in self.seen)

    def gets(self) -> Counter[str]:
        return Counter(s.path for s in self.seen if s.method == "GET" and "?" not in s.path)

    # One connection -------------------------------------------------------------------------------
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.suppress(*ends):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection is good for another."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        headers = _headers(head)
        if headers.pop("expect", None):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(method, unquote(target), headers.get("range"), headers.get("if-match"))
        self.seen.append(seen)
        self.on_request(seen)
        fault = self._fault(seen)
        if fault.black_hole:
            await reader.read()  # until the client gives up
            return False
        await asyncio.sleep(fault.latency_s)
        if fault.answer is not None:
            seen.status = fault.answer[0]
            writer.write(_refusal(fault, method))
            await writer.drain()
            return True
        return await self._pass(seen, fault, _request(method, target, headers) + body, writer)

    async def _pass(
        self, seen: Seen, fault: Fault, request: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        upstream, to_upstream = await asyncio.open_connection(*self.upstream)
        try:
            to_upstream.write(request)
            head = await upstream.readuntil(b"\r\n\r\n")
            seen.status = int(head.split(b" ", 2)[1])
            headers = _headers(head)
            headers["connection"] = "keep-alive" if "content-length" in headers else "close"
            if fault.longer_by:
                headers["content-length"] = str(int(headers["content-length"]) + fault.longer_by)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(head.split(b"\r\n", 1)[0] + b"\r\n" + lines.encode() + b"\r\n")
            if seen.method != "HEAD" and not await self._body(seen, fault, upstream, writer):
                return False
            await writer.drain()
            return headers["connection"] == "keep-alive" and not fault.longer_by
        finally:
            to_upstream.close()

    async def _body(
        self,
        seen: Seen,
        fault: Fault,
        upstream: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        while data := bytearray(await upstream.read(PIECE)):
            if fault.flip is not None and 0 <= fault.flip - seen.num_bytes < len(data):
                data[fault.flip - seen.num_bytes] ^= 1
            end = fault.cut_after if fault.cut_after is not None else fault.silent_after
            if end is not None:
                del data[max(0, end - seen.num_bytes) :]
            seen.num_bytes += len(data)
            writer.write(data)
            await writer.drain()
            if fault.bytes_per_s is not None:
                await asyncio.sleep(len(data) / fault.bytes_per_s)
            if end is not None and seen.num_bytes >= end:
                if fault.silent_after is not None:
                    await asyncio.sleep(3600)
                _cut(writer, fault.cut_by)
                return False
        return True

    def _fault(self, seen: Seen) -> Fault:
        for rule in self.rules:
            if rule.method in (None, seen.method) and rule.key in seen.path and rule.times != 0:
                if rule.times is not None:
                    rule.times -= 1
                return rule.fault
        return Fault()


def _cut(writer: asyncio.StreamWriter, by: str) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    if by == "rst":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.split(":", 1) for line in lines if line)
    return {name.strip().lower(): value.strip() for name, value in pairs}


def _request(method: str, target: str, headers: dict[str, str]) -> bytes:
    headers["connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def _refusal(fault: Fault, method: str) -> bytes:
    assert fault.answer is not None
    status, code = fault.answer
    body = f"<Error><Code>{code}</Code><Message>as told</Message></Error>" if code else ""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fault.headers)
    head = (
        f"HTTP/1.1 {status} {STATUS.get(status, 'Error')}\r\n{lines}"
        f"Content-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head if method == "HEAD" else head + body).encode()


@contextlib.contextmanager
def proxy_before(endpoint: str) -> Iterator[FaultProxy]:
    """A proxy before the server at `endpoint`, until the block ends."""
    parts = urlsplit(endpoint)
    assert parts.hostname is not None and parts.port is not None
    proxy = FaultProxy((parts.hostname, parts.port))
    loop = asyncio.new_event_loop()
    listening = threading.Event()

    async def listen() -> None:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        proxy.endpoint = f"http://{host}:{port}"
        listening.set()

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(listen())
        loop.run_forever()
        loop.run_until_complete(end())
        loop.close()

    thread = threading.Thread(target=run, name="fault-proxy", daemon=True)
    thread.start()
    assert listening.wait(60)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
