"""Do streams arrive in time through the whole path: core, replica, Ray, ingress, proxy, client?

One replica with the fake device makes a token for every stream at each step, so the streams'
tokens come in bursts, as a real engine's do. Each token's delay is from when it left the core to
when the client's socket had its text, both on this host's monotonic clock. The streams begin at
their own times, whatever became of the others (open loop).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray import serve

from deployments.app import compose
from deployments.bench import fixture
from deployments.config import AppConfig
from deployments.replica.replica import Replica
from deployments.replica.replica_config import ReplicaConfig
from engine.messages import Output

APP = "bench"
RESULT = "RESULT "  # begins the line that isn't Ray's


@dataclass(frozen=True, slots=True)
class Setting:
    """num_streams, each of `num_tokens`, at `rate` tokens a second; they begin over `ramp_s`."""

    num_streams: int = 128
    num_tokens: int = 200
    rate: float = 20.0
    ramp_s: float = 3.0
    stream_interval_s: float = 0.05


class TracedReplica(Replica):
    """Writes down when each token left the core."""

    def __init__(self, config: ReplicaConfig) -> None:
        super().__init__(config, observe=self._see)
        path = trace_path(Path(config.engine.store.disk_path).parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def _see(self, output: Output) -> None:
        for part in output.sequences:
            self._file.write(f"{part.request_id} {output.at_s}\n" * len(part.tokens))
        self._file.flush()


def trace_path(data_dir: Path) -> Path:
    """A line a token: request id, when it left the core."""
    return data_dir / "trace.txt"


@dataclass(frozen=True, slots=True)
class Received:
    """What one client saw. reads: (when, bytes) of each read of its socket."""

    request_id: str
    reads: list[tuple[float, bytes]]

    def tokens(self) -> Iterator[tuple[float, str]]:
        """(when its event was complete, its text) of each token."""
        pending = b""
        for at_s, data in self.reads:
            pending += data
            *events, pending = pending.split(b"\n\n")
            for event in events:
                for text in _texts(event):
                    yield from ((at_s, token) for token in re.findall("<[0-9]+>", text))


def measure(setting: Setting) -> dict[str, Any]:
    """Delays in seconds, whether every token came, and who used the processors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fixture.make_base(folder)
        config = _config(folder, setting)
        key = fixture.make_tenant(config, max_concurrent=setting.num_streams + 8)
        with _service(config) as port:
            asyncio.run(_run(port, key, Setting(4, 20, setting.rate, 0.1)))  # warm
            before = _processor_seconds()
            received = asyncio.run(_run(port, key, setting))
            used = {who: s - before.get(who, 0.0) for who, s in _processor_seconds().items()}
        trace = trace_path(config.data_dir).read_text().splitlines()
    return {**asdict(setting), **report(received, trace, setting), "processor_s": _round(used)}


def report(received: Sequence[Received], trace: Sequence[str], setting: Setting) -> dict[str, Any]:
    left: defaultdict[str, list[float]] = defaultdict(list)
    for line in trace:
        request_id, out = line.split(" ")
        left[request_id.split(":")[1].split(".")[0]].append(float(out))
    delays: list[float] = []
    began_s = min(client.reads[0][0] for client in received)
    by_second: defaultdict[int, list[float]] = defaultdict(list)
    num_events = 0
    for client in received:
        came = list(client.tokens())
        num_events += len({at_s for at_s, _ in came})
        for (at_s, _), out_s in zip(came, left[client.request_id], strict=False):
            delays.append(at_s - out_s)
            by_second[int(out_s - began_s)].append(at_s - out_s)
    delays.sort()
    expected = setting.num_streams * setting.num_tokens
    ends = [at for client in received for at, _ in client.reads]
    return {
        "tokens_expected": expected,
        "tokens_received": len(delays),
        "every_token_in_order": all(_in_order(client, setting) for client in received),
        "tokens_per_s": len(delays) / (max(ends) - min(ends)),
        "tokens_per_read": len(delays) / num_events,
        "delay_p50_s": delays[len(delays) // 2],
        "delay_p99_s": delays[int(0.99 * len(delays))],
        "delay_max_s": delays[-1],
        "delay_p99_by_second_s": [
            round(sorted(by_second[i])[int(0.99 * len(by_second[i]))], 3) for i in sorted(by_second)
        ],
    }


def _in_order(client: Received, setting: Setting) -> bool:
    """The fake device counts, so a lost, doubled or swapped token shows."""
    numbers = [int(text[1:-1]) for _, text in client.tokens()]
    return len(numbers) == setting.num_tokens and all(
        b - a == 1 for a, b in zip(numbers, numbers[1:], strict=False)
    )


def _texts(event: bytes) -> Iterator[str]:
    for line in event.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                yield choice.get("text") or ""


async def _run(port: int, key: str, setting: Setting) -> list[Received]:
    async def begin(number: int) -> Received:
        await asyncio.sleep(number * setting.ramp_s / setting.num_streams)
        return await _stream(port, key, f"s{number}-{setting.num_streams}", setting.num_tokens)

    return await asyncio.gather(*(begin(i) for i in range(setting.num_streams)))


async def _stream(port: int, key: str, request_id: str, num_tokens: int) -> Received:
    """One request by hand, so that the client takes little of the processors it measures."""
    body = {"model": fixture.NAME, "prompt": [5] * 16, "max_tokens": num_tokens, "stream": True}
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
        f"x-request-id: {request_id}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + data)
    reads: list[tuple[float, bytes]] = []
    while chunk := await reader.read(1 << 16):
        reads.append((time.monotonic(), chunk))
        if b"data: [DONE]" in chunk:
            break
    writer.close()
    return Received(request_id, reads)


def _config(folder: Path, setting: Setting) -> AppConfig:
    return fixture.app_config(
        folder,
        {
            "fake_step_s": 1.0 / setting.rate,
            "max_model_len": 4096,
            "memory": {"arena_bytes": 1 << 30, "host_bytes": 64 << 20},
            "schedule": {"max_seqs": setting.num_streams + 8, "depth": 1},
            "stream_interval_s": setting.stream_interval_s,
        },
    )


@contextmanager
def _service(config: AppConfig) -> Iterator[int]:
    """A local Ray with the service on it; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=4)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(compose(config, replica=TracedReplica), name=APP, route_prefix="/")
        yield port
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


def _processor_seconds() -> dict[str, float]:
    """User and system seconds so far, by what the process is: Ray's, our children, this client."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds: defaultdict[str, float] = defaultdict(float)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        who = _who(int(folder.name), command)
        if who:
            seconds[who] += (int(fields[11]) + int(fields[12])) / tick
    return dict(seconds)


def _who(pid: int, command: str) -> str:
    if pid == os.getpid():
        return "client"
    for mark, who in (
        ("engine.core", "core"),
        ("ServeReplica:bench:Replica", "replica"),
        ("ServeReplica:bench:Ingress", "ingress"),
        ("ProxyActor", "proxy"),
        ("raylet", "raylet"),
        ("gcs_server", "gcs"),
    ):
        if mark in command:
            return who
    return ""


def _round(seconds: dict[str, float]) -> dict[str, float]:
    return {who: round(used, 2) for who, used in sorted(seconds.items())}


def main() -> None:
    """The child of `deployments.bench`: a setting as JSON in, the result on a line of its own."""
    print(RESULT + json.dumps(measure(Setting(**json.loads(sys.argv[1])))))
