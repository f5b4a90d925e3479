"""Does anything else on a replica disturb its core's steps?

One replica without Ray: a real core on the fake device, a real loader, real streams. The core's
step time is compared between a quiet phase, one with a thread of pure Python spinning in the
replica process, and one in which distinct adapters are fetched, verified and packed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import statistics
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from deployments.bench import fixture
from deployments.replica.replica import Replica
from deployments.replica.replica_config import ReplicaConfig
from engine.messages import Output
from engine.types import AdapterRef, Request, Tenant

ARENA_BYTES = 8 << 30  # the fake device has pages, but no memory behind them
HOST_BYTES = 256 << 20
WARM_UP_S = 3.0
SHORTEST, LONGEST = 100, 700  # tokens of a stream's requests, one after another


@dataclass(frozen=True, slots=True)
class Setting:
    """num_streams decode all the time; the phases take turns, `rounds` times each, `phase_s` long.
    The loads are spread over the rounds.

    realtime  the core is scheduled ahead of every other process of the machine (needs root), as if
              it had a processor of its own: what is left is what reaches it through our own code
    """

    num_streams: int = 64
    num_loads: int = 50
    step_s: float = 0.009
    rounds: int = 3
    phase_s: float = 10.0
    realtime: bool = False


class Steps:
    """When each of the core's outputs left it."""

    def __init__(self) -> None:
        self._at_s: list[float] = []

    def see(self, output: Output) -> None:
        if output.sequences:
            self._at_s.append(output.at_s)

    def take(self) -> list[float]:
        """Seconds from output to output since the last call, ascending: whole turns of the core's
        loop, for it never idles here."""
        at_s, self._at_s = self._at_s, []
        return sorted(b - a for a, b in itertools.pairwise(at_s))


async def measure(setting: Setting) -> dict[str, Any]:
    """Step times in seconds by phase (median over the rounds), and their ratios to the quiet."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as name:
        async with running(Path(name), setting, steps) as (replica, refs):
            streams = [asyncio.create_task(stream(replica, i)) for i in range(setting.num_streams)]
            await asyncio.sleep(WARM_UP_S)
            rounds = [
                await _round(replica, steps, refs[i :: setting.rounds], setting.phase_s)
                for i in range(setting.rounds)
            ]
            for task in streams:
                task.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    return _report(rounds, setting)


async def _round(
    replica: Replica, steps: Steps, refs: Sequence[AdapterRef], phase_s: float
) -> dict[str, list[float]]:
    phases: dict[str, Callable[[], Awaitable[None]]] = {
        "quiet": lambda: asyncio.sleep(phase_s),
        "busy_thread": lambda: _spin(phase_s),
        "loads": lambda: load(replica, refs, phase_s),
    }
    times = {}
    for phase, work in phases.items():
        steps.take()
        await work()
        times[phase] = steps.take()
    return times


def _report(rounds: Sequence[dict[str, list[float]]], setting: Setting) -> dict[str, Any]:
    def by_phase(q: float) -> dict[str, float]:
        return {
            phase: statistics.median(quantile(times[phase], q) for times in rounds)
            for phase in rounds[0]
        }

    p99 = by_phase(0.99)
    return {
        **dataclasses.asdict(setting),
        "num_steps": {phase: sum(len(times[phase]) for times in rounds) for phase in rounds[0]},
        "step_p50_s": by_phase(0.5),
        "step_p99_s": p99,
        "p99_rounds_s": {
            phase: [quantile(times[phase], 0.99) for times in rounds] for phase in rounds[0]
        },
        "p99_ratio": {phase: p99[phase] / p99["quiet"] for phase in ("busy_thread", "loads")},
    }


def quantile(ascending: Sequence[float], q: float) -> float:
    """`ascending` holds one value or more; 0 <= q <= 1."""
    return ascending[min(len(ascending) - 1, int(q * len(ascending)))]


@asynccontextmanager
async def running(
    folder: Path,
    setting: Setting,
    steps: Steps,
    place: Callable[[Path], str] | None = None,
    **adapters: float,
) -> AsyncIterator[tuple[Replica, list[AdapterRef]]]:
    """A replica and the versions of `num_loads` adapters, none of them loaded.

    place     takes the folder that the objects lie in and answers the url of the store that has
              them; None: that folder is the store
    adapters  keys of the configuration's section of this name
    """
    section = {
        "adapters": adapters,
        "fake_step_s": setting.step_s,
        "max_model_len": 1 << 16,
        "memory": {"arena_bytes": ARENA_BYTES, "host_bytes": HOST_BYTES},
        "schedule": {"max_seqs": setting.num_streams + 16},
    }
    fixture.make_base(folder)
    config = fixture.app_config(folder, section)
    fixture.make_tenant(config, max_concurrent=1024)
    refs = await asyncio.to_thread(fixture.prepare, folder, section, setting.num_loads)
    tokenizer = str(folder / "base" / "tokenizer.json")
    engine = config.engine_config()
    if place is not None:
        url = await asyncio.to_thread(place, folder / "data" / "objects")
        engine = dataclasses.replace(engine, store=dataclasses.replace(engine.store, url=url))
    replica_config = ReplicaConfig(engine, tokenizer, "bench")
    replica = Replica(replica_config, slot=int, observe=steps.see)
    try:
        await replica.start()
        if setting.realtime:
            _ahead_of_all((await replica.status())["pids"]["core"])
        yield replica, refs
    finally:
        replica.shutdown()


def _ahead_of_all(pid: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(1))


def _call(name: str, ref: AdapterRef | None, max_tokens: int) -> dict[str, Any]:
    request = Request(name, Tenant(fixture.TENANT), ref, tuple(range(1, 17)), max_tokens)
    return {"v": 1, "requests": [request.to_wire()], "deadline_s": 3600.0}


async def stream(replica: Replica, number: int) -> None:
    """Requests without a pause. Lengths differ, so that their ends and page ends don't coincide."""
    random = Random(number)
    while True:
        call = _call(f"stream-{number}", None, random.randint(SHORTEST, LONGEST))
        async for _ in replica.generate(call):
            pass


async def _spin(seconds: float) -> None:
    stop = threading.Event()

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        await asyncio.sleep(seconds)
    finally:
        stop.set()
        thread.join()


async def load(replica: Replica, refs: Sequence[AdapterRef], seconds: float) -> None:
    """Ask for each adapter once, evenly over the first 80 % of the time, and stay until that is
    over and all have answered."""

    async def ask(delay: float, ref: AdapterRef) -> None:
        await asyncio.sleep(delay)
        async for events in replica.generate(_call(ref.name, ref, 1)):
            if "error" in events[0]:
                raise RuntimeError(str(events[0]["error"]))

    gap = 0.8 * seconds / len(refs)
    asked = [ask(i * gap, ref) for i, ref in enumerate(refs)]
    await asyncio.gather(asyncio.sleep(seconds), *asked)
