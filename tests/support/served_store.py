"""An engine on the fake device and a real loader, over the channel between them, on any store."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from engine.adapters.store import ObjectStore
from engine.channel import Channel
from engine.config import AdapterConfig, EngineConfig, MemoryConfig, ModelConfig, StoreConfig
from engine.engine import build_engine
from engine.errors import ErrorInfo
from engine.fake_runner import FakeRunner
from engine.loader import Loader, serve
from engine.types import AdapterRef, FinishReason, Request, Tenant

REVISION = "rev-1"
HOST_BYTES = 1 << 20
STEP_S = 0.002
TIMEOUT_S = 60.0


@dataclasses.dataclass
class Answer:
    """What a request has been told, and when its tokens came."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    times: list[float] = dataclasses.field(default_factory=list)
    finish: FinishReason | None = None
    error: ErrorInfo | None = None


class ServedStore:
    """base: the model's folder. disk: the disk tier's. Time is real: the store is."""

    def __init__(self, base: Path, disk: Path, store: ObjectStore, channel: Channel) -> None:
        self.config = engine_config(base, disk)
        self.host = bytearray(HOST_BYTES)
        self.loader = Loader(self.config, memoryview(self.host), store)
        self.engine = build_engine(self.config, FakeRunner(self.config), REVISION, time.monotonic)
        self.answers: dict[str, Answer] = {}
        self.num_loads = 0
        self._channel = channel

    def submit(self, name: str, ref: AdapterRef | None, max_tokens: int = 4) -> Answer:
        answer = self.answers[name] = Answer()
        self.engine.submit(Request(name, Tenant("acme"), ref, (1, 2, 3), max_tokens))
        return answer

    def run(self, *names: str) -> None:
        """Until these requests have their end, or all."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.answers[n].finish is None for n in names or self.answers):
            assert time.monotonic() < deadline, "not done in time"
            self.step()

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()

    def step(self) -> None:
        for done in self._channel.take():
            self.engine.deliver(done)
        output = self.engine.step()
        self.engine.scheduler.check()
        if output is None:
            self._channel.wait(0.001)
            return
        for load in output.loads:
            self.num_loads += 1
            self._channel.send(load)
        for part in output.sequences:
            answer = self.answers[part.request_id]
            assert answer.finish is None
            answer.tokens += part.tokens
            answer.times += [time.monotonic()] * len(part.tokens)
            answer.finish, answer.error = part.finish, part.error


def engine_config(base: Path, disk: Path) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(str(base), device="fake", max_model_len=4096, fake_step_s=STEP_S),
        memory=MemoryConfig(arena_bytes=64 << 20, host_bytes=HOST_BYTES),
        store=StoreConfig("s3://elsewhere", str(disk), disk_bytes=1 << 24),
        adapters=AdapterConfig(max_loads=3, failure_ttl_s=1.0, max_failure_ttl_s=2.0),
    )


@contextlib.contextmanager
def served(base: Path, disk: Path, store: ObjectStore) -> Iterator[ServedStore]:
    """With a loader that serves in threads until the block ends."""
    ours, theirs = (Channel(s) for s in socket.socketpair())
    world = ServedStore(base, disk, store, ours)
    max_loads = world.config.adapters.max_loads
    thread = threading.Thread(target=serve, args=(world.loader, theirs, max_loads))
    thread.start()
    try:
        yield world
    finally:
        ours.close()
        thread.join()
        theirs.close()
        world.engine.close()
