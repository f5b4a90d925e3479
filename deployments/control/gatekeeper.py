"""Control's side of the canary gate: adds up what ingresses count, and rolls back what is worse.

Counts live in memory. An ingress tells all of its own each time, so after a restart of control they
are there again within a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from deployments.canary.gate import GateSection, State, decide, view
from deployments.canary.trial_counts import Sides, Trial
from deployments.changes.adapters import Adapters
from deployments.ingress.trials import TRIALS_VERSION
from engine.errors import Conflict, InvalidRequest
from engine.log_lines import fields

logger = logging.getLogger(__name__)
KEPT_S = 600.0
"""How long a trial is remembered that nobody tells of."""


@dataclass(slots=True)
class _Book:
    """What is known of one trial. told: by the epoch of the ingress."""

    told: dict[str, Sides] = field(default_factory=dict)
    heard_s: float = 0.0


class Gatekeeper:
    """One thread at a time; `observe` blocks on the registry where it rolls back."""

    def __init__(self, gate: GateSection, adapters: Adapters, clock: Callable[[], float]) -> None:
        """clock: seconds."""
        self._gate, self._adapters, self._clock = gate, adapters, clock
        self._books: dict[Trial, _Book] = {}

    def observe(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """An ingress's counts (`Trials.report`); the models whose canary it ended. Raises
        InvalidRequest for what can't be read, Unavailable where the registry isn't there."""
        epoch, told = _read(report)
        now = self._clock()
        self._books = {t: b for t, b in self._books.items() if now - b.heard_s < KEPT_S}
        ended = []
        for trial, sides in told:
            # An ingress whose copy of the registry is late tells of the trial before, meanwhile.
            book = self._books.setdefault(trial, _Book())
            book.told[epoch] = sides
            book.heard_s = now
            verdict = decide(Sides.total(book.told.values()), self._gate)
            if verdict.state is State.WORSE and self._roll_back(trial, verdict.why):
                ended.append(trial.model)
        return {"ended": ended}

    def trial(self, model: str) -> dict[str, Any]:
        """{"trial": what is known of the model's newest trial that was told of, or None}."""
        known = [(t, b) for t, b in self._books.items() if t.model == model]
        if not known:
            return {"trial": None}
        trial, book = max(known, key=lambda one: (one[0].number, one[1].heard_s))
        sides = Sides.total(book.told.values())
        verdict = decide(sides, self._gate)
        return {"trial": {**asdict(trial), **asdict(verdict), **view(sides, self._gate)}}

    def _roll_back(self, trial: Trial, why: str) -> bool:
        """Whether it ran till now. Where others were faster, the next report tries again."""
        try:
            if not self._adapters.end_trial(trial, f"canary gate: {why}"):
                return False
        except Conflict as error:
            logger.info("canary gate: %s", error.message)
            return False
        tenant = trial.model.partition("/")[0]
        about = fields(tenant=tenant, adapter=trial.model, version=trial.canary)
        canary = trial.canary[:12]
        logger.warning(
            "canary gate rolled %s of %s back: %s", canary, trial.model, why, extra=about
        )
        return True


def _read(report: Mapping[str, Any]) -> tuple[str, list[tuple[Trial, Sides]]]:
    if report.get("v") != TRIALS_VERSION:
        raise InvalidRequest(f"Report version {report.get('v')} is not {TRIALS_VERSION}.")
    try:
        told = [(Trial(**t["trial"]), Sides.from_wire(t["sides"])) for t in report["trials"]]
        return str(report["epoch"]), told
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"The report can't be read: {error!r}.") from None
