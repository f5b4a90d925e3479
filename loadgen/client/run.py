"""What a run was: everything the report is made of, kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from loadgen.client.faults import FaultDone
from loadgen.client.outcome import Outcome

FACTS, REQUESTS, SAMPLES = "run.json", "requests.jsonl", "replicas.jsonl"


class RunError(Exception):
    """A folder that holds no run; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the service's replicas said of themselves. at_s: from the run's start."""

    at_s: float
    replicas: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a run, besides its requests.

    shares       `popularity.Shares` of what was scheduled, as plain values
    digest       of the schedule: runs with the same one had the same work
    began        wall clock, ISO 8601
    wall_s       from the first moment to the last answer
    interrupted  somebody ended it before its time
    settings     what else the run was started with
    """

    scenario: str
    seed: int
    parameters: Mapping[str, Any]
    shares: Mapping[str, float]
    digest: str
    num_scheduled: int
    duration_s: float
    weights: Mapping[str, float]
    url: str
    began: str
    wall_s: float
    interrupted: bool
    settings: Mapping[str, Any]
    faults: Sequence[FaultDone] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """outcomes: by index, one for each scheduled request, those that were never sent among them."""

    facts: Facts
    outcomes: Sequence[Outcome]
    samples: Sequence[Sample]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FACTS).write_text(json.dumps(asdict(self.facts), indent=1) + "\n")
        _write_lines(folder / REQUESTS, (outcome.to_json() for outcome in self.outcomes))
        _write_lines(folder / SAMPLES, (asdict(sample) for sample in self.samples))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises RunError."""
        try:
            values = json.loads((folder / FACTS).read_text())
            facts = Facts(**values)
            faults = tuple(FaultDone(**fault) for fault in values["faults"])
            outcomes = [Outcome.from_json(v) for v in _lines(folder / REQUESTS)]
            samples = [Sample(**v) for v in _lines(folder / SAMPLES)]
        except OSError as error:
            raise RunError(
                f"{error.filename}: {error.strerror}. Name a folder that `loadgen run --out` wrote."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder} was written by another release: {error!r}.") from None
        return cls(replace(facts, faults=faults), outcomes, samples)


def _write_lines(path: Path, values: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, separators=(",", ":")) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
