"""Changes of a registry that takes a write and can't confirm it, and of one that others change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.changes.compare_and_set import MAX_ATTEMPTS, update
from deployments.changes.pin_budget import Budget, Budgets
from deployments.changes.pins import Pins
from deployments.changes.tenants import Tenants
from deployments.registry import open_registry
from deployments.registry.pin_record import PinRecord
from deployments.registry.records import TenantRecord
from deployments.registry.registry import Registry
from engine.errors import Conflict, Unavailable

PIN = PinRecord("t1", "bot", True, 1, 10, "lp-Adm1...", 3.0)


class Alone:
    """A registry whose replicas are away: a write is made, and not confirmed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.is_alone = True

    def put(self, *args: Any) -> int:
        rev = self._registry.put(*args)
        self.confirm()
        return rev

    def confirm(self) -> None:
        if self.is_alone:
            raise Unavailable("The change was made, but not confirmed.")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    opened = open_registry(f"sqlite://{tmp_path}/registry.db")
    Tenants(opened, clock=lambda: 5.0, random_bytes=lambda n: b"x" * n).create(TenantRecord("t1"))
    yield opened
    opened.close()


def suspend(registry: Any) -> None:
    Tenants(registry, clock=lambda: 5.0, random_bytes=lambda n: b"y" * n).suspend("t1")


def pin(registry: Any) -> None:
    Pins(registry, Budgets(Budget(100, 100), Budget(100, 100)), 1).pin(PIN)


@pytest.mark.parametrize("change", [suspend, pin])
def test_what_is_done_again_is_answered_once_it_is_confirmed(
    registry: Registry, change: Callable[[Any], None]
) -> None:
    """Nothing is left to write the second time; a failover could lose the first all the same."""
    alone = Alone(registry)
    for _ in range(2):
        with pytest.raises(Unavailable):
            change(alone)
    rev = registry.list("").rev
    alone.is_alone = False
    change(alone)
    assert registry.list("").rev == rev


def test_who_is_overtaken_again_and_again_is_told_so(registry: Registry) -> None:
    tried = 0

    def change(before: dict[str, Any] | None) -> dict[str, Any]:
        nonlocal tried
        tried += 1
        registry.put("k", {"theirs": tried}, None)
        return {"ours": tried}

    with pytest.raises(Conflict, match="The thing keeps changing"):
        update(registry, "k", dict, dict, change, "The thing")
    assert tried == MAX_ATTEMPTS
    entry = registry.get("k")
    assert entry is not None and entry.value == {"theirs": MAX_ATTEMPTS}
