"""Who really is served: tenants with their keys and models, and what of a workload goes to whom."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MADE = "load-"
"""Tenants made for a workload's are named so: no other tenant's key is ever changed."""


class RosterError(Exception):
    """A roster that can't be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant of the service. models: as requests name them. key "": none is sent."""

    tenant: str
    key: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roster:
    members: tuple[Member, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """From JSON: {"tenants": [{"tenant", "key", "models"}, ...]}. Raises RosterError."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))["tenants"]
            members = [Member(v["tenant"], v["key"], tuple(v["models"])) for v in values]
        except OSError as error:
            raise RosterError(
                f"{path} can't be read: {error.strerror}. `loadgen publish` writes it."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise RosterError(f"{path} is no roster: {error!r}.") from None
        return cls(tuple(members))

    def write(self, path: Path) -> None:
        """Readable by its owner alone: it has keys."""
        values = [
            {"tenant": m.tenant, "key": m.key, "models": list(m.models)} for m in self.members
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"tenants": values}, file, indent=1)
        partial.rename(path)

    def find(self, tenant: str) -> Member | None:
        return next((m for m in self.members if m.tenant == tenant), None)

    def bind(self, wanted: Mapping[str, Sequence[str]], fold: bool) -> Binding:
        """A member for each tenant and a model for each of its adapters.

        By name where the roster has the tenant, or the one made for it, and a model that ends in
        the adapter's name; else in order. fold: members and models are used again where there are
        too few. Raises RosterError.
        """
        targets: dict[tuple[str, str], Target] = {}
        for place, (tenant, adapters) in enumerate(wanted.items()):
            member = self.find(tenant) or self.find(f"{MADE}{tenant}")
            if member is None:
                if place >= len(self.members) and not fold:
                    raise RosterError(_too_few("tenants", len(wanted), len(self.members)))
                member = self.members[place % len(self.members)]
            named = {model.rpartition("/")[2]: model for model in member.models}
            for number, adapter in enumerate(adapters):
                model = named.get(adapter)
                if model is None:
                    if number >= len(member.models) and not fold:
                        raise RosterError(
                            _too_few(f"models of {tenant}", len(adapters), len(member.models))
                        )
                    model = member.models[number % len(member.models)]
                targets[tenant, adapter] = Target(member.key, model)
        return Binding(targets)


@dataclass(frozen=True, slots=True)
class Target:
    """Whose key, which model."""

    key: str
    model: str


@dataclass(frozen=True, slots=True)
class Binding:
    """By (tenant, adapter) of a workload."""

    targets: Mapping[tuple[str, str], Target]


def _too_few(what: str, wanted: int, there: int) -> str:
    return (
        f"The workload has {wanted} {what}, the roster {there}. `loadgen publish` with the same"
        " --scenario and --set makes what is missing; --fold uses what is there again."
    )
