"""What becomes of client requests, counted in the ingress: one `RequestMeter` for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Protocol

from deployments.rest.answers import Event
from deployments.rest.edge import ClientGone
from deployments.telemetry import instruments as i
from deployments.telemetry.metering import Metering, adapter_name
from engine.errors import CoreLost, ErrorInfo, LoraplexError, ReplicaLost
from engine.types import AdapterRef, Tenant

OK = ErrorInfo(200, "ok", "")
GONE = ErrorInfo(499, "client_gone", "")
UNFORESEEN = ErrorInfo(500, "internal_error", "")
LOST = (CoreLost.code, ReplicaLost.code)
NOT_LET_IN = frozenset({"overloaded"})
"""Codes of 503 that mean so; every 429 does."""

Batches = AsyncGenerator[list[Event], None]


class Meter(Protocol):
    """One client request, from its arrival to its end: a context manager, entered once."""

    def __enter__(self) -> Meter: ...

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None: ...

    def resolved(self, ref: AdapterRef | None, num_choices: int) -> None:
        """What it is for, and how many sequences answer each of its prompts."""

    def over(self, batches: Batches) -> Batches:
        """The same events, counted."""

    def lost(self, code: str) -> None:
        """An attempt at it ended with its replica (an error's code)."""


class RequestMetrics:
    """One ingress's. clock: seconds, monotonic."""

    def __init__(self, metering: Metering, clock: Callable[[], float]) -> None:
        self.metering = metering
        self._clock = clock
        self._num_active = 0
        for code in LOST:
            metering.tally.add(i.LOSSES, 0, code)
        metering.readers.append(self._read)

    def begin(self, tenant: Tenant | None) -> RequestMeter:
        """A request has arrived, of this tenant (None: of an operator)."""
        return RequestMeter(self, self._clock, "" if tenant is None else tenant.id)

    def refused(self, tenant: Tenant | None, error: LoraplexError) -> None:
        """A request for an answer that ended before it was known for what: its key is nobody's
        (tenant None), or its body says nothing sensible."""
        self.begin(tenant).count(error.info())

    def started(self) -> None:
        self._num_active += 1

    def ended(self) -> None:
        self._num_active -= 1

    def _read(self) -> None:
        self.metering.tally.set(i.REQUESTS_ACTIVE, self._num_active)


class RequestMeter:
    """Labels are looked up whenever something is counted: by the end of a long answer its tenant
    may have lost its own."""

    def __init__(self, metrics: RequestMetrics, clock: Callable[[], float], tenant: str) -> None:
        self._metrics = metrics
        self._tally = metrics.metering.tally
        self._clock = clock
        self._began_s = clock()
        self._tenant, self._adapter = tenant, ""
        if tenant:
            metrics.metering.tenants.see(tenant)
        self._num_choices = 1
        self._first_s: dict[int, float] = {}
        self._failure: ErrorInfo | None = None

    def __enter__(self) -> RequestMeter:
        self._metrics.started()
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self._metrics.ended()
        end = self._failure or _outcome(error)
        self.count(end)
        self._tally.observe(i.REQUEST_DURATION, self._clock() - self._began_s, str(end.status))

    def count(self, end: ErrorInfo) -> None:
        """It has ended so."""
        tenant, adapter = self._labels()
        self._tally.add(i.REQUESTS, 1, tenant, adapter, str(end.status), end.code)
        if end.status == 429 or end.code in NOT_LET_IN:
            self._tally.add(i.REFUSALS, 1, tenant, end.code)

    def resolved(self, ref: AdapterRef | None, num_choices: int) -> None:
        metering = self._metrics.metering
        self._adapter = adapter_name(ref)
        self._num_choices = num_choices
        metering.adapters.see(self._adapter)

    async def over(self, batches: Batches) -> Batches:
        """An error in the midst of a stream, whose status has long been sent, counts by its own."""
        try:
            async with aclosing(batches):
                async for batch in batches:
                    self._heard(batch)
                    yield batch
        except Exception as error:
            self._failure = _outcome(error)
            raise

    def lost(self, code: str) -> None:
        if code in LOST:
            self._tally.add(i.LOSSES, 1, code)

    def _heard(self, events: Iterable[Event]) -> None:
        for event in events:
            index = event["i"]
            if event.get("tokens") and index not in self._first_s:
                self._first_token(index)
            if "finish" in event:
                self._ended(index, event)

    def _first_token(self, index: int) -> None:
        """Of several sequences, the first to have one is when the client sees something."""
        now = self._clock()
        if not self._first_s:
            waited_s = now - self._began_s
            tenant, adapter = self._labels()
            is_rare = self._metrics.metering.tenants.is_rare(self._tenant)
            self._tally.observe(i.TENANT_FIRST_TOKEN, waited_s, tenant)
            self._tally.observe(i.ADAPTER_FIRST_TOKEN, waited_s, adapter)
            pool = "bottom_decile" if is_rare else "rest"
            self._tally.observe(i.POPULARITY_FIRST_TOKEN, waited_s, pool)
        self._first_s[index] = now

    def _ended(self, index: int, event: Event) -> None:
        """A prompt counts once, however many sequences answer it."""
        whose = self._labels()
        if index % self._num_choices == 0:
            self._tally.add(i.TOKENS, event["prompt_tokens"], *whose, "prompt")
            self._tally.add(i.TOKENS, event["cached_tokens"], *whose, "cached")
        num_tokens = event["completion_tokens"]
        self._tally.add(i.TOKENS, num_tokens, *whose, "completion")
        first_s = self._first_s.get(index)
        if first_s is not None and num_tokens > 1:
            interval_s = (self._clock() - first_s) / (num_tokens - 1)
            self._tally.observe(i.TOKEN_INTERVAL, interval_s)

    def _labels(self) -> tuple[str, str]:
        """ "" for what was never known."""
        metering = self._metrics.metering
        if not self._tenant:
            return "", ""
        return metering.tenants.label(self._tenant), metering.adapters.label(self._adapter)


class Unmetered:
    """Where metrics are off."""

    def __enter__(self) -> Unmetered:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def resolved(self, ref: AdapterRef | None, num_choices: int) -> None:
        pass

    def over(self, batches: Batches) -> Batches:
        return batches

    def lost(self, code: str) -> None:
        pass


UNMETERED = Unmetered()


def begin(metrics: RequestMetrics | None, tenant: Tenant | None) -> Meter:
    """The meter of a request that has arrived, of this tenant (None: of an operator)."""
    return UNMETERED if metrics is None else metrics.begin(tenant)


def _outcome(error: BaseException | None) -> ErrorInfo:
    match error:
        case None:
            return OK
        case LoraplexError():
            return error.info()
        case ClientGone() | asyncio.CancelledError() | GeneratorExit():
            return GONE
    return UNFORESEEN
