"""An ingress's side of the canary gate: counts what becomes of requests, and tells control.

What isn't the version's doing counts on neither side: the client's errors, refusals for want of
room, a lost replica, a store that can't be reached, a client that went away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from deployments.canary.gate import GateSection
from deployments.canary.trial_counts import Side, Sides, Trial
from deployments.ingress.catalog import Catalog
from deployments.ingress.directory import split_model
from deployments.registry.alias import PRODUCTION
from deployments.rest.answers import Event
from engine.errors import AdapterRejected, AdapterUnavailable, CoreLost, LoraplexError, Unavailable
from engine.types import AdapterRef

logger = logging.getLogger(__name__)
TRIALS_VERSION = 1
UNAVAILABLE = frozenset(
    {CoreLost.code, AdapterUnavailable.code, "object_missing", "adapter_corrupt"}
)
"""Of the answers 503, those for the version's sake."""


class Control(Protocol):
    async def observe(self, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises Unavailable."""
        ...


class Watch:
    """One request, seen from the ingress. now_s: a monotonic clock."""

    def __init__(self, side: Side, now_s: Callable[[], float], timed: bool) -> None:
        """timed: whether its times count."""
        self._side, self._now_s, self._timed = side, now_s, timed
        self._begun_s = now_s()
        self._first_s = self._last_s = 0.0
        self._tokens = self._later = 0

    async def over(
        self, batches: AsyncGenerator[list[Event], None]
    ) -> AsyncGenerator[list[Event], None]:
        """The same batches, watched. What is given up half-way isn't counted."""
        try:
            async with aclosing(batches):
                async for batch in batches:
                    self.heard(batch)
                    yield batch
        except Exception as error:
            self.failed(error)
            raise
        self.answered()

    def heard(self, events: Iterable[Event]) -> None:
        """A batch of the answer. Of several sequences the first is timed."""
        for event in events:
            if event["i"] == 0 and event.get("tokens"):
                self._last_s = self._now_s()
                if not self._tokens:
                    self._first_s = self._last_s
                else:
                    self._later += event["tokens"]
                self._tokens += event["tokens"]

    def answered(self) -> None:
        side = self._side
        side.answered += 1
        if self._timed and self._tokens:
            side.first.add(self._first_s - self._begun_s)
        if self._timed and self._later:
            side.token.add((self._last_s - self._first_s) / self._later)

    def failed(self, error: Exception) -> None:
        code = failure(error)
        if code is not None:
            self._side.fail(code)


def failure(error: Exception) -> str | None:
    """The code to count against a version, None where the error isn't its doing."""
    if not isinstance(error, LoraplexError):
        return LoraplexError.code
    if error.status == Unavailable.status:
        return error.code if error.code in UNAVAILABLE else None
    its_own = error.status == AdapterRejected.status or error.status >= 500
    return error.code if its_own else None


@dataclass(slots=True)
class _Running:
    """warm_s: from when times count; None: the canary had no request yet."""

    sides: Sides = field(default_factory=Sides)
    warm_s: float | None = None


class Trials:
    """The trials that this ingress has requests of."""

    def __init__(
        self, gate: GateSection, catalog: Catalog, clock: Callable[[], float], epoch: str
    ) -> None:
        """clock: monotonic seconds. epoch: a word of this process's life alone."""
        self._gate, self._catalog, self._clock, self._epoch = gate, catalog, clock, epoch
        self._running: dict[Trial, _Running] = {}

    def watch(self, model: str, tenant: str, ref: AdapterRef) -> Watch | None:
        """Of a request for `model` that `ref` was drawn for; None where no trial runs. Who names a
        version or the canary itself isn't drawn, so can't be compared."""
        if not self._gate.enabled:
            return None
        parts = split_model(model, tenant)
        record = None if parts is None else self._catalog.adapter(tenant, parts[0])
        trial = None if record is None else Trial.of(record)
        if trial is None or parts is None or parts[1] not in (None, PRODUCTION):
            return None
        if ref.digest not in (trial.canary, trial.production):
            return None
        running = self._running.setdefault(trial, _Running())
        now = self._clock()
        is_canary = ref.digest == trial.canary
        if is_canary and running.warm_s is None:
            running.warm_s = now + self._gate.warm_up_s
        timed = running.warm_s is not None and now >= running.warm_s
        side = running.sides.canary if is_canary else running.sides.production
        return Watch(side, self._clock, timed)

    def report(self) -> dict[str, Any] | None:
        """What has been counted of the trials that still run, None of none; the others are
        forgotten."""
        for trial in list(self._running):
            tenant, _, name = trial.model.partition("/")
            record = self._catalog.adapter(tenant, name)
            if record is None or Trial.of(record) != trial:
                del self._running[trial]
        if not self._running:
            return None
        told = [
            {"trial": asdict(trial), "sides": running.sides.to_wire()}
            for trial, running in self._running.items()
        ]
        return {"v": TRIALS_VERSION, "epoch": self._epoch, "trials": told}

    async def run(self, control: Control) -> None:
        """Report for ever; not at all where the gate is off."""
        while self._gate.enabled:
            await asyncio.sleep(self._gate.report_s)
            report = self.report()
            if report is None:
                continue
            try:
                await control.observe(report)
            except LoraplexError as error:
                logger.warning("canary gate: %s", error.message)
            except Exception:
                logger.exception("canary gate: counts can't be told")
