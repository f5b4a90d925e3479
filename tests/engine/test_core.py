"""The core's loop and its process: what it says first, when it waits, how it ends."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from engine.channel import Channel, ChannelClosed
from engine.config import EngineConfig
from engine.core import IDLE_S, Collector, complaint, serve
from engine.errors import ErrorInfo, UnsupportedDevice
from engine.messages import Abort, Input, Output, Ready, SequenceOutput, Submit
from engine.receipts import open_memory
from engine.types import FinishReason
from tests.support.replicas import engine_config, request


@dataclass
class ScriptedEngine:
    """Answers each step with the next of `outputs`, then None."""

    outputs: list[Output | Exception | None] = field(default_factory=list)
    delivered: list[Input] = field(default_factory=list)
    num_steps: int = 0
    idle: bool = True

    def deliver(self, message: Input) -> None:
        self.delivered.append(message)

    def step(self) -> Output | None:
        self.num_steps += 1
        output = self.outputs.pop(0) if self.outputs else None
        if isinstance(output, Exception):
            raise output
        return output


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """`serve` turns the collector off for its process; the tests' goes on."""
    yield
    gc.enable()
    gc.unfreeze()


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    parent, core = Channel(ours), Channel(theirs)
    yield parent, core
    parent.close()
    core.close()


def said(number: int) -> Output:
    return Output((SequenceOutput("r", (number,)),))


def test_outputs_leave_in_order_stamped_and_empty_ones_stay(ends: tuple[Channel, Channel]) -> None:
    parent, core = ends
    engine = ScriptedEngine([said(1), Output(), said(2)])
    thread = threading.Thread(target=serve, args=(engine, core, lambda: 7.0))
    thread.start()
    assert [parent.receive(), parent.receive()] == [
        replace(said(1), at_s=7.0),
        replace(said(2), at_s=7.0),
    ]
    parent.send(Abort("r"))
    parent.close()
    thread.join(60)
    assert not thread.is_alive()
    assert parent.take() == []


def test_an_idle_core_waits_for_a_message(ends: tuple[Channel, Channel]) -> None:
    parent, core = ends
    engine = ScriptedEngine()
    thread = threading.Thread(target=serve, args=(engine, core, time.monotonic))
    thread.start()
    began = time.monotonic()
    time.sleep(0.2)
    num_steps = engine.num_steps
    assert num_steps <= 2 + (time.monotonic() - began) / IDLE_S
    engine.outputs.append(said(1))
    parent.send(Submit(request()))
    assert parent.receive().sequences == said(1).sequences
    assert engine.delivered == [Submit(request())]
    parent.close()
    thread.join(60)


def test_what_a_step_raises_is_raised(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(RuntimeError, match="bad step"):
        serve(ScriptedEngine([RuntimeError("bad step")]), ends[1], time.monotonic)


def test_garbage_is_collected_between_steps_alone() -> None:
    now = [0.0]
    collector = Collector(lambda: now[0])
    assert not gc.isenabled()
    seen: list[int] = []
    gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
    try:
        collector.between_steps(idle=False)
        assert seen == []
        now[0] = 1.0
        collector.between_steps(idle=False)
        assert set(seen) == {0}
        now[0] = 2.0
        collector.between_steps(idle=True)
        assert 2 in seen
        seen.clear()
        collector.between_steps(idle=True)
        assert seen == []
        now[0] = 700.0
        collector.between_steps(idle=False)
        assert 2 in seen
    finally:
        gc.callbacks.pop()


@dataclass
class Process:
    """A real core process and our end of its channel."""

    popen: subprocess.Popen[bytes]
    channel: Channel
    liveness: int


@pytest.fixture
def start() -> Iterator[Callable[[EngineConfig], Process]]:
    started: list[Process] = []

    def start(config: EngineConfig) -> Process:
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        host = os.memfd_create("test")
        os.ftruncate(host, config.memory.host_bytes)
        counted = open_memory()
        fds = [theirs.fileno(), host, read, counted]
        names = ["--fd", "--host-fd", "--liveness-fd", "--receipts-fd"]
        arguments = [word for pair in zip(names, map(str, fds), strict=True) for word in pair]
        popen = subprocess.Popen([sys.executable, "-m", "engine.core", *arguments], pass_fds=fds)
        theirs.close()
        os.close(read)
        os.close(host)
        os.close(counted)
        process = Process(popen, Channel(ours), write)
        started.append(process)
        process.channel.send(config)
        return process

    yield start
    for process in started:
        process.channel.close()
        process.popen.kill()
        process.popen.wait()
        os.close(process.liveness)


Start = Callable[[EngineConfig], Process]


def outputs(channel: Channel) -> Iterator[SequenceOutput]:
    while True:
        message = channel.receive()
        assert isinstance(message, Output)
        yield from message.sequences


def test_process_serves_and_ends_with_its_channel(start: Start, tmp_path: Path) -> None:
    process = start(engine_config(tmp_path))
    ready = process.channel.receive()
    assert isinstance(ready, Ready) and ready.num_pages > 0
    process.channel.send(Submit(request("r", max_tokens=3)))
    tokens: list[int] = []
    for part in outputs(process.channel):
        tokens += part.tokens
        if part.finish is not None:
            break
    assert (len(tokens), part.finish) == (3, FinishReason.LENGTH)
    process.channel.close()
    assert process.popen.wait(60) == 0


def test_process_that_can_not_start_says_why(start: Start, tmp_path: Path) -> None:
    config = engine_config(tmp_path)
    schedule = replace(config.schedule, max_seqs=8, max_step_tokens=8)
    process = start(replace(config, schedule=schedule))
    error = process.channel.receive()
    assert isinstance(error, ErrorInfo)
    assert "max_step_tokens" in error.message
    assert process.popen.wait(60) == 1


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UnsupportedDevice("No GPU."), "unsupported_device", "No GPU."),
        (ValueError("page_tokens"), "invalid_request", "page_tokens"),
        (RuntimeError("CUDA error 46"), "internal_error", "CUDA error 46"),
    ],
)
def test_whatever_keeps_a_core_from_starting_reaches_its_parent(
    error: Exception, code: str, words: str
) -> None:
    told = complaint(error)
    assert told.code == code
    assert words in told.message


def test_process_whose_step_fails_ends_with_status_1(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = start(engine_config(tmp_path))
    process.channel.receive()
    broken: Any = "no request"
    process.channel.send(Submit(broken))
    assert process.popen.wait(60) == 1
    assert "A step failed" in capfd.readouterr().err
    with pytest.raises(ChannelClosed):
        while True:
            process.channel.receive()


def test_process_idles_without_using_the_processor(start: Start, tmp_path: Path) -> None:
    process = start(engine_config(tmp_path))
    process.channel.receive()
    stat = Path(f"/proc/{process.popen.pid}/stat")

    def used_s() -> float:
        fields = stat.read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = used_s(), time.monotonic()
    told = 0
    while told < 2:
        told += isinstance(output := process.channel.receive(), Output) and output.stats is not None
    assert used_s() - before <= 0.05 * max(1.0, time.monotonic() - began)
