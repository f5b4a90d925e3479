"""What `loraplex doctor` finds: one line for each thing that a start or a publish needs.

Checks are pure: facts in, findings out (`doctor_machine`, `doctor_model`, `doctor_backends`). Facts
are gathered by `doctor_probes` and `doctor_backend_probes`, which act.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """A failure stops a start or a publish; a warning bites later."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """remedy: what to do about it; empty where all is well."""

    subject: str
    level: Level
    said: str
    remedy: str = ""

    def check(self) -> None:
        assert bool(self.remedy) == (self.level is not Level.OK), self
        assert self.subject and self.said, self


def ok(subject: str, said: str) -> Finding:
    return Finding(subject, Level.OK, said)


def warning(subject: str, said: str, remedy: str) -> Finding:
    return Finding(subject, Level.WARNING, said, remedy)


def failure(subject: str, said: str, remedy: str) -> Finding:
    return Finding(subject, Level.FAILURE, said, remedy)


def worst(findings: Iterable[Finding]) -> Level:
    levels = {finding.level for finding in findings}
    return next((x for x in (Level.FAILURE, Level.WARNING) if x in levels), Level.OK)


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
