"""Rotations of one tenant's key that meet, at every moment of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.changes.tenants import Tenants
from deployments.registry import open_registry
from deployments.registry.records import KeyRecord, TenantRecord, key_key
from deployments.registry.registry import Registry
from engine.errors import Conflict

CALLS = 6
"""Of the registry by a rotation (tenant, the new key, keys, the old one read and ended), and 1."""


class Interrupted:
    """A registry before whose call number `at` (from 0) something else happens."""

    def __init__(self, registry: Registry, at: int, happens: Callable[[], object]) -> None:
        self._registry = registry
        self._at = at
        self._happens = happens
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        if self.num_calls == self._at:
            self._happens()
        self.num_calls += 1
        return getattr(self._registry, name)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    opened = open_registry(f"sqlite://{tmp_path}/registry.db")
    yield opened
    opened.close()


@pytest.mark.parametrize("at", range(CALLS))
def test_of_rotations_that_meet_the_last_one_s_key_alone_is_good(
    registry: Registry, at: int
) -> None:
    """And who made another is told so, unless it was answered before the last had begun to tell."""
    numbers = iter(range(1, 100))

    def tenants(registry: Any) -> Tenants:
        return Tenants(
            registry, clock=lambda: 5.0, random_bytes=lambda n: next(numbers).to_bytes(n, "big")
        )

    def works(key: str) -> bool:
        entry = registry.get(key_key(key))
        return entry is not None and KeyRecord.from_value(entry.value).revoked_s is None

    made: list[str] = []
    _, first = tenants(registry).create(TenantRecord("race"))
    _, bystander = tenants(registry).create(TenantRecord("other"))
    between = Interrupted(registry, at, lambda: made.append(tenants(registry).rotate_key("race")))
    is_refused = False
    try:
        mine = tenants(between).rotate_key("race")
    except Conflict:
        is_refused = True
    else:
        made.insert(len(made) if at <= 1 else 0, mine)  # by when they were written
    assert is_refused == (at == 2), "the other's was written, and mine not answered"
    assert [works(key) for key in (first, *made)] == [False] * len(made) + [True]
    assert works(bystander)
    last = tenants(registry).rotate_key("race")
    assert [works(key) for key in (*made, last)] == [False] * len(made) + [True]
