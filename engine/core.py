"""The core process: `python -m engine.core`. One thread runs the step loop and nothing else.

The channel's threads only move bytes; messages are unpickled here, between two steps. So no other
thread holds the GIL for more than a moment while a step is being prepared. The garbage collector
runs between steps only, too.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from engine.channel import Channel, ChannelClosed
from engine.child import attach
from engine.config import EngineConfig
from engine.engine import build_engine
from engine.errors import ErrorInfo, InvalidRequest, LoraplexError
from engine.log_lines import log_as_json
from engine.messages import Input, Output, Ready
from engine.plan import Runner

log = logging.getLogger("loraplex.core")

IDLE_S = 0.5  # an idle core looks up so often, so that its stats show that it lives
POLL_S = 0.001  # how soon a finished upload is noticed while nothing else is to do
NOTHING = Output()
YOUNG_S = 1.0
FULL_S = 600.0


class Steps(Protocol):
    """What the loop asks of an `Engine`."""

    @property
    def idle(self) -> bool: ...
    def deliver(self, message: Input) -> None: ...
    def step(self) -> Output | None: ...


class Collector:
    """Garbage collection at times of our choosing.

    Nearly everything here dies by its reference count. Each second the objects made since are
    looked at (well under a millisecond); all of them when there is nothing to do, at most once a
    second, or else every ten minutes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        gc.disable()
        gc.collect()
        gc.freeze()
        self._clock = clock
        self._young = self._full = clock()

    def between_steps(self, idle: bool) -> None:
        now = self._clock()
        if now - self._full >= (YOUNG_S if idle else FULL_S):
            gc.collect()
            self._young = self._full = now
        elif now - self._young >= YOUNG_S:
            gc.collect(0)
            self._young = now


def serve(engine: Steps, channel: Channel, clock: Callable[[], float]) -> None:
    """Step until the parent closes the channel. Whatever a step raises is raised here.

    The engine has stats to tell once a second even when idle, so a stuck core shows.
    """
    collector = Collector(clock)
    while not channel.closed:
        for message in channel.take():
            engine.deliver(message)
        output = engine.step()
        if output is not None and output != NOTHING:
            channel.send(dataclasses.replace(output, at_s=clock()))
        collector.between_steps(idle=output is None and engine.idle)
        if output is None:
            channel.wait(IDLE_S if engine.idle else POLL_S)


BuildRunner = Callable[[EngineConfig, mmap.mmap], Runner]


def build_runner(config: EngineConfig, host: mmap.mmap) -> Runner:
    """The device. Each is imported only where it is used: the fake one needs no torch."""
    match config.model.device:
        case "fake":
            from engine.fake_runner import FakeRunner  # noqa: PLC0415

            return FakeRunner(config)
        case "cpu":
            import torch  # noqa: PLC0415

            from engine.cpu_runner import CpuRunner  # noqa: PLC0415

            torch.set_num_threads(config.model.threads)
            return CpuRunner(config, memoryview(host))
        case "cuda":
            from engine.cuda_runner import CudaRunner  # noqa: PLC0415

            return CudaRunner.load(config, memoryview(host))


def complaint(error: Exception) -> ErrorInfo:
    """Why the core can't start, for its parent."""
    match error:
        case LoraplexError():
            return error.info()
        case ValueError():
            return InvalidRequest(str(error)).info()
    return LoraplexError(f"The core can't start: {error!r}. Its log says where.").info()


def main(build: BuildRunner = build_runner) -> int:
    """Returns the exit status: 0 where the parent ended the core, 1 where it can't start. A step
    that fails ends the process, with status 1."""
    log_as_json("core")
    started = time.monotonic()
    try:
        parent = attach()
        channel, config = parent.channel, parent.config
    except ChannelClosed:
        return 0
    try:
        runner = build(config, parent.host)
        engine = build_engine(config, runner, config.model.revision, time.monotonic)
    except Exception as error:
        is_known = isinstance(error, LoraplexError | ValueError)
        log.error("The core can't start: %s", error, exc_info=not is_known)
        channel.send(complaint(error))
        channel.flush(1.0)
        return 1
    try:
        startup_s = time.monotonic() - started
        ready = Ready(runner.num_pages, runner.page_bytes, startup_s, runner.memory)
        channel.send(ready)
        log.info("ready after %.1f s", startup_s)
        serve(engine, channel, time.monotonic)
    except ChannelClosed:
        pass
    except Exception:
        # The parent learns it at once. A GPU that failed is asked for nothing more, not even to
        # take memory back: after an error a tensor that is freed aborts the process.
        channel.close()
        log.exception("A step failed; the core ends.")
        end(1)
    runner.close()
    return 0


def end(status: int) -> NoReturn:
    """Without an interpreter's shutdown: a thread of a library that won't end must not keep memory
    alive."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    end(main())
