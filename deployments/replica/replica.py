"""The replica actor: streams in front of a core. No torch, no HTTP.

Everything below runs on one event loop. The core's outputs reach it with one wake-up a step,
however many rows the step had, and are turned into text here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from opentelemetry.trace import Span

from deployments.orders.tier_orders import (
    place_of,
    read_pins,
    read_prefetch,
    read_retry,
)
from deployments.platform.hosts import check_here, node_here
from deployments.platform.serve_process import serve_instance, serve_rank
from deployments.replica.books import Books
from deployments.replica.call_wire import read_call
from deployments.replica.calls import Call, Pace, late
from deployments.replica.children import CORE, LOADER, Children
from deployments.replica.detokenise import Vocabulary
from deployments.replica.leaving import leave_soon
from deployments.replica.limit_book import LimitBook
from deployments.replica.open_calls import LEAVING, OpenCalls
from deployments.replica.replica_config import ReplicaConfig, device_facts
from deployments.replica.streams import Event, Stream, error_event
from deployments.telemetry.logs import about_request, begin_request
from deployments.telemetry.replica_metrics import replica_metrics
from deployments.telemetry.replica_spans import replica_spans
from engine.adapters.residency import ResidencyTable
from engine.core_stats import CoreStats
from engine.errors import LoraplexError, Unavailable
from engine.log_lines import fields, log_as_json
from engine.messages import Drop, Output, Ready
from engine.types import Request, adapter_from_wire

log = logging.getLogger("loraplex.replica")


class Replica:
    """One replica of the model. Ray Serve calls it; so can a test, without Ray.

    clock         seconds, monotonic
    slot          this replica's rank among the replicas
    leave         ends this process at once; called after the core's death
    observe       sees each of the core's outputs, for measurements
    core, loader  as in `Children`
    """

    def __init__(
        self,
        config: ReplicaConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        slot: Callable[[], int] | None = None,
        leave: Callable[[int], object] = os._exit,
        observe: Callable[[Output], object] | None = None,
        core: str = CORE,
        loader: str = LOADER,
    ) -> None:
        if config.json_logs:
            log_as_json("replica", about_request)
        check_here(config.home_node, node_here)
        self._config = config
        self._clock = clock
        self._slot = slot or serve_rank
        self._leave = leave
        self._observe = observe
        model = dataclasses.replace(config.engine.model, revision=config.base_revision)
        engine = dataclasses.replace(config.engine, model=model)
        self._children = Children(engine, self._output, self._core_died, core=core, loader=loader)
        pace = Pace(config.stream_interval_s, config.free_rate, clock)
        self._calls = OpenCalls(self._children.submit, pace)
        self._vocabulary = Vocabulary.load(config.tokenizer_path)
        self._serials = itertools.count()
        self._starting: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._dead = False
        self._heard_s = 0.0
        self._residency = ResidencyTable()
        self._stats: CoreStats | None = None
        self._ready: Ready | None = None
        self._books = Books(uuid.uuid4().hex)
        self._limits = LimitBook()
        self._spans = replica_spans(config.telemetry, serve_instance)
        self._metrics = replica_metrics(config.telemetry, self._residency, self._children)

    async def start(self) -> None:
        """Start the children, once however often it is called. Raises the core's complaint."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        self._ready = ready = await self._children.start(self._config.startup_timeout_s)
        self._heard_s = self._clock()
        self._metrics.start(ready)
        log.info(
            "Core ready after %.1f s: %d pages of %d bytes.",
            ready.startup_s,
            ready.num_pages,
            ready.page_bytes,
        )

    # Calls --------------------------------------------------------------------------------------
    async def generate(self, call: Mapping[str, Any]) -> AsyncIterator[list[Event]]:
        """Answer one client request: lists of events as in `deployments.replica.streams`.

        call  as in `deployments.replica.call_wire`

        Nothing is raised for what goes wrong with a request: its stream ends with an error event.
        When the caller goes away, what is unfinished is aborted in the core.
        """
        try:
            await self.start()
            requests, deadline_s = self._read(call)
        except LoraplexError as error:
            num = len(call.get("requests", ())) or 1
            yield [error_event(i, error.info()) for i in range(num)]
            return
        about = begin_request(str(call.get("about", "")))
        about.update(tenant=requests[0].tenant.id, **fields(requests[0].adapter)["fields"])
        span = self._spans.begin(call, self._slot, about)
        streams = [Stream(i, r, self._vocabulary) for i, r in enumerate(requests)]
        with contextlib.ExitStack() as ending:
            open_call = self._calls.open(streams)
            ending.callback(self._close, open_call, span)
            loop = asyncio.get_running_loop()
            timer = loop.call_later(deadline_s, self._calls.fail, open_call, late(deadline_s))
            ending.callback(timer.cancel)
            if self._dead:
                self._calls.fail(open_call, LEAVING)
            else:
                if span is not None:
                    self._spans.submitted(span, requests)
                self._calls.submit(open_call)
            while not open_call.done:
                yield await open_call.next()

    def _close(self, call: Call, span: Span | None) -> None:
        self._calls.close(call)
        for code, why in {s.error.code: s.error.message for s in call.streams if s.error}.items():
            log.warning("failed: %s", why, extra=fields(code=code))
        if span is not None:
            span.end()

    def _read(self, call: Mapping[str, Any]) -> tuple[list[Request], float]:
        """Under ids of our own: two clients may send the same x-request-id at once."""
        requests, deadline_s = read_call(call)
        serial = next(self._serials)
        ours = [dataclasses.replace(r, id=f"{serial}-{i}:{r.id}") for i, r in enumerate(requests)]
        return ours, deadline_s

    # Orders: plain values, since they may come from another release -------------------------------
    async def drop(self, ref: Mapping[str, Any], now: bool = False) -> None:
        """A version (as `adapter_to_wire` writes it) is retired: see `messages.Drop`."""
        await self.start()
        self._children.submit([Drop(adapter_from_wire(ref), now)])

    async def prefetch(self, order: Mapping[str, Any]) -> dict[str, Any] | None:
        """See `tier_orders`. Where the version is now: {"slot", "tier", "why" of a failure}; None
        where the order is for others."""
        await self.start()
        slot = self._slot()
        wishes = read_prefetch(order, slot)
        if not wishes:
            return None
        self._children.submit(wishes)
        key = wishes[-1].ref.key
        failed = self._children.load_failures.reason(key)
        return {"slot": slot, **place_of(self._residency.places(key), failed)}

    async def retry(self, order: Mapping[str, Any]) -> None:
        """See `tier_orders`: what of these versions has failed is forgotten."""
        await self.start()
        self._children.submit(read_retry(order))

    async def set_pins(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `tier_orders`: all pins of this replica from now on."""
        await self.start()
        pins = read_pins(order, self._slot())
        self._children.submit([pins])
        return {"slot": self._slot(), "num_pins": len(pins.pins)}

    async def set_limits(self, order: Mapping[str, Any]) -> None:
        """See `limit_book`: tenants whose weight or limits have changed."""
        await self.start()
        self._children.submit([self._limits.read(order)])

    async def exchange_service(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `shared_service`."""
        await self.start()
        self._children.submit([self._books.service.read(order)])
        return self._books.service.answer(self._slot())

    async def gather_usage(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """See `books`."""
        return self._books.usage.answer(order)

    # The core -----------------------------------------------------------------------------------
    def _output(self, output: Output) -> None:
        self._heard_s = self._clock()
        if self._observe is not None:
            self._observe(output)
        self._metrics.heard(output)
        if output.residency is not None:
            self._residency.apply(output.residency)
        self._spans.note(output)
        self._stats = output.stats or self._stats
        self._books.heard(output.stats, output.measures)
        self._calls.feed(output.sequences)

    def _core_died(self, unread: frozenset[str]) -> None:
        """Every stream gets its error event; once those are out, this process ends, so that Ray
        replaces the whole and nothing of the old one keeps memory."""
        self._dead = True
        self._spans.lost()
        self._calls.core_died(unread)
        self._leaving = asyncio.get_running_loop().create_task(self._leave_soon())

    async def _leave_soon(self) -> None:
        await leave_soon(lambda: self._calls.num_open, self._config.drain_s, self._clock)
        self._leave(1)

    # What Ray asks ------------------------------------------------------------------------------
    async def check_health(self) -> None:
        """Raises Unavailable where the core is gone or silent. The first call starts everything."""
        await self.start()
        if self._dead:
            raise Unavailable("The core died; this replica is about to end.")
        if (silent_s := self._clock() - self._heard_s) > self._config.stall_s:
            raise Unavailable(f"The core has said nothing for {silent_s:.1f} s.")

    async def record_routing_stats(self) -> dict[str, Any]:
        """For the router: the slot on the ring, the rows, and what is resident where."""
        return {
            "slot": self._slot(),
            "rows": self._config.engine.schedule.max_seqs,
            **self._residency.lists(),
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `router.autoscaling` reads; nothing before the core's first statistics."""
        if self._stats is None:
            return {}
        return {
            "running": float(self._stats.num_running),
            "waiting": float(self._stats.num_waiting),
            "rows": float(self._config.engine.schedule.max_seqs),
            "queue_s": self._stats.queue_s,
        }

    async def status(self) -> dict[str, Any]:
        """For whoever asks after the replicas, often: plain values, and no tenant's own."""
        started = self._starting is not None and self._starting.done()
        return {
            "ready": started and not self._dead,
            "pids": {"replica": os.getpid(), **self._children.pids},
            "slot": self._slot(),
            "device": self._ready and device_facts(self._config.engine, self._ready),
            "residency": self._residency.lists(),
            **self._children.load_failures.told(),
            "rows": self._config.engine.schedule.max_seqs,
            "stats": self._stats and self._stats.totals(),
        }

    async def activity(self) -> dict[str, Any]:
        """For `loraplex top`: the same, and the tenants that it is busy for."""
        return {**await self.status(), **self._books.activity.told()}

    def shutdown(self) -> None:
        """End the children; blocks until no process is left and the spans are sent. Idempotent."""
        self._metrics.close()
        self._children.close()
        self._spans.close()

    def __del__(self) -> None:
        """Ray Serve calls this after draining, when a replica is taken away."""
        if hasattr(self, "_metrics"):  # the last that the constructor sets
            self.shutdown()
