"""Sends a schedule's requests when they are due, whatever became of those before: an open loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from loadgen.client.faults import Facts, Fault, FaultDone, inject
from loadgen.client.outcome import NOT_SENT, Outcome
from loadgen.client.prompts import Prompts
from loadgen.client.roster import Binding
from loadgen.client.run import Sample
from loadgen.client.service import Service, ServiceError
from loadgen.client.stream import Asking, Endpoint
from loadgen.client.tally import Tally
from loadgen.workloads.arrival import Schedule

KEEP_ALIVE_S = 4.0
"""Shorter than any server's (uvicorn's is 5 s): a connection that the server closes just as a
request goes out on it would be an error of the generator's making."""
READ_BYTES = 1 << 16
SAMPLE_S = 2.0
SETTLE_S = 2.5
LEAD_S = 0.5
"""From the first line of a run to its moment 0, for whatever has to get going."""


@dataclass(frozen=True, slots=True)
class Result:
    """outcomes: by index, all of the schedule's."""

    outcomes: Sequence[Outcome]
    faults: Sequence[FaultDone]
    samples: Sequence[Sample]
    wall_s: float
    interrupted: bool


async def no_facts() -> dict[str, str]:
    """Of a service whose processes are not known."""
    return {}


class Runner:
    """One run. `stop` ends it early; `run` then still returns what was seen."""

    def __init__(
        self,
        schedule: Schedule,
        binding: Binding,
        endpoint: Endpoint,
        clock: Callable[[], float],
        faults: Sequence[Fault] = (),
        drain_s: float = 60.0,
    ) -> None:
        """clock: monotonic seconds. drain_s: how long after the schedule's end those that still run
        may take."""
        self._schedule, self._binding, self._endpoint = schedule, binding, endpoint
        self._clock, self._faults, self._drain_s = clock, faults, drain_s
        self._prompts = Prompts(schedule.seed)
        self._stopped = asyncio.Event()
        self._asking: dict[int, Asking] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._faults_done: list[FaultDone] = []
        self._samples: list[Sample] = []
        self._origin_s = 0.0
        self.tally = Tally(len(schedule.arrivals))

    def stop(self) -> None:
        """Send nothing more, and leave what runs."""
        self._stopped.set()

    def now_s(self) -> float:
        """From the run's moment 0; before it, below 0."""
        return self._clock() - self._origin_s

    async def run(self, http: aiohttp.ClientSession, service: Service | None) -> Result:
        """All of it. service: whose replicas are sampled, None: nobody's."""
        facts: Facts = no_facts if service is None else service.pids
        with _few_collections():
            # Only now: of a large heap, the collection that this begins with takes seconds.
            self._origin_s = self._clock() + LEAD_S
            beside = [asyncio.create_task(self._fault(fault, facts)) for fault in self._faults]
            if service is not None:
                beside.append(asyncio.create_task(self._sample(service)))
            requests = await self._send_all(http)
            await self._drain(requests)
        wall_s = self.now_s()
        await self._end(beside)
        await self._end(requests)
        if service is not None and not self._stopped.is_set():
            # Counters come once a second: only now do they hold the last answers.
            await asyncio.sleep(SETTLE_S)
            await self._take_sample(service)
        for index, asking in self._asking.items():
            self._outcomes[index] = asking.outcome()
        return Result(
            outcomes=[self._outcome(index) for index in range(len(self._schedule.arrivals))],
            faults=sorted(self._faults_done, key=lambda f: f.at_s),
            samples=self._samples,
            wall_s=wall_s,
            interrupted=self._stopped.is_set(),
        )

    async def _send_all(self, http: aiohttp.ClientSession) -> list[asyncio.Task[None]]:
        tasks: list[asyncio.Task[None]] = []
        for index, arrival in enumerate(self._schedule.arrivals):
            await self._pause_until(arrival.time_s)
            if self._stopped.is_set():
                break
            tasks.append(asyncio.create_task(self._one(http, index)))
        return tasks

    async def _one(self, http: aiohttp.ClientSession, index: int) -> None:
        arrival = self._schedule.arrivals[index]
        target = self._binding.targets[arrival.tenant, arrival.adapter]
        due_s = self._origin_s + arrival.time_s
        prompt = self._prompts.text(index, arrival.session, arrival.input_tokens)
        asking = self._asking[index] = Asking(index, arrival, target, due_s, self._clock)
        self.tally.sent()
        outcome = await asking.ask(http, self._endpoint, prompt)
        del self._asking[index]
        self._outcomes[index] = outcome
        self.tally.ended(outcome)

    async def _drain(self, requests: Sequence[asyncio.Task[None]]) -> None:
        if not requests:
            return
        all_ended = asyncio.create_task(asyncio.wait(requests))
        stopped = asyncio.create_task(self._stopped.wait())
        last_s = max(self._schedule.duration_s, self.now_s())
        timeout_s = max(0.0, last_s + self._drain_s - self.now_s())
        await asyncio.wait(
            (all_ended, stopped), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        await self._end((all_ended, stopped))

    async def _pause_until(self, time_s: float) -> None:
        """Or until the run is stopped. Lets others run even where it is late."""
        delay_s = time_s - self.now_s()
        if delay_s < SAMPLE_S:
            await asyncio.sleep(max(0.0, delay_s))
            return
        try:
            await asyncio.wait_for(self._stopped.wait(), delay_s)
        except TimeoutError:
            return

    async def _fault(self, fault: Fault, facts: Facts) -> None:
        await asyncio.sleep(max(0.0, fault.at_s - self.now_s()))
        began_s = round(self.now_s(), 3)
        try:
            done = await inject(fault, facts, self.now_s)
        except (ServiceError, OSError) as error:
            done = FaultDone(began_s, fault.command, None, str(error))
        except asyncio.CancelledError:
            done = FaultDone(began_s, fault.command, None, "It still ran when the run ended.")
        self._faults_done.append(done)

    async def _sample(self, service: Service) -> None:
        while True:
            at_s = self.now_s()
            await self._take_sample(service)
            await asyncio.sleep(max(0.0, at_s + SAMPLE_S - self.now_s()))

    async def _take_sample(self, service: Service) -> None:
        at_s = self.now_s()
        # A fault may well have taken the endpoint away: then there is a sample less.
        with contextlib.suppress(ServiceError):
            self._samples.append(Sample(round(at_s, 3), await service.replicas()))

    async def _end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _outcome(self, index: int) -> Outcome:
        found = self._outcomes.get(index)
        if found is not None:
            return found
        arrival = self._schedule.arrivals[index]
        return Outcome(
            index=index,
            due_s=arrival.time_s,
            tenant=arrival.tenant,
            adapter=arrival.adapter,
            status=NOT_SENT,
            lag_s=0.0,
            end_s=0.0,
            asked_input=arrival.input_tokens,
            asked_output=arrival.output_tokens,
        )


def session() -> aiohttp.ClientSession:
    """For a run: as many connections as it takes, no timeouts but a connection's and a request's
    own."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=300)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=READ_BYTES)


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """What exists before a run is never looked at by the garbage collector during it, and a full
    look at the rest is rare: with 2,000 streams one takes longer than a late request may."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
