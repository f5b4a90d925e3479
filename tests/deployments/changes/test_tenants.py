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

CALLS = 6
"""Of the registry by a rotation (tenant, keys, the new key, the old one read and ended), and 1."""


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
def test_a_rotated_key_works_unless_another_rotation_saw_it(registry: Registry, at: int) -> None:
    numbers = iter(range(1, 100))

    def tenants(registry: Any) -> Tenants:
        return Tenants(
            registry, clock=lambda: 5.0, random_bytes=lambda n: next(numbers).to_bytes(n, "big")
        )

    def works(key: str) -> bool:
        entry = registry.get(key_key(key))
        return entry is not None and KeyRecord.from_value(entry.value).revoked_s is None

    others: list[str] = []
    _, first = tenants(registry).create(TenantRecord("race"))
    _, bystander = tenants(registry).create(TenantRecord("other"))
    between = Interrupted(registry, at, lambda: others.append(tenants(registry).rotate_key("race")))
    mine = tenants(between).rotate_key("race")
    seen_by_other = at > 2  # it came after this one's key was written
    seen_by_mine = at <= 1
    assert not works(first) and works(bystander)
    if others:
        assert (works(mine), works(others[0])) == (not seen_by_other, not seen_by_mine)
    else:
        assert between.num_calls <= at and works(mine)
    last = tenants(registry).rotate_key("race")
    assert [works(key) for key in (mine, *others, last)] == [False, *(False for _ in others), True]
