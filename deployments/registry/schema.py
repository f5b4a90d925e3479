"""The version of what a registry holds, and how older contents become newer ones.

A step takes one key's value from a version to the next; a backend applies all steps to all values,
and its own changes of layout, in one atomic step before it answers anything. A new kind of record,
or a field with a default, needs no new version: older releases skip what they don't know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.registry.records import ADAPTERS
from deployments.registry.upgrade import upgraded
from engine.errors import RegistryUnavailable

Value = Mapping[str, Any]
Step = Callable[[str, Value], Value]
"""(key, value in version n) -> value in version n + 1."""


@dataclass(frozen=True, slots=True)
class Schema:
    """version  what this release reads and writes, >= 1
    steps    by the version that they start from: all from the oldest that can be read up"""

    version: int
    steps: Mapping[int, Step]

    @property
    def oldest(self) -> int:
        """The oldest version that can be brought up to this one."""
        return min((n for n in self.steps if n < self.version), default=self.version)

    def migrated(self, key: str, value: Value, found: int) -> Value:
        """`value`, stored in version `found`, as this version has it."""
        for version in range(found, self.version):
            value = self.steps[version](key, value)
        return value

    def accept(self, found: int, where: str) -> None:
        """Raises Unavailable for a version that this release can neither read nor migrate."""
        if self.oldest <= found <= self.version:
            return
        remedy = (
            "Start the release that wrote it, or a later one"
            if found > self.version
            else "Migrate it with an earlier release first"
        )
        raise RegistryUnavailable(
            f"The registry at {where} has schema {found}; this release reads {self.oldest} to"
            f" {self.version}. {remedy}, or name another registry.",
            code="registry_schema",
        )


def _with_aliases(key: str, value: Value) -> Value:
    return upgraded(value) if key.startswith(ADAPTERS) else value


SCHEMA = Schema(version=2, steps={1: _with_aliases})
"""2: an adapter's record has aliases, and revisions belong to an epoch."""
