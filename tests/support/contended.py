"""A registry on which somebody else is faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.registry.registry import Registry
from engine.errors import Conflict


class Contended:
    """The next `times` writes of a key that begins with `prefix` lose."""

    def __init__(self, registry: Registry, prefix: str = "", times: int = 0) -> None:
        self._registry, self._prefix, self.times = registry, prefix, times

    def put(self, key: str, value: Mapping[str, Any], expected_rev: int | None) -> int:
        if self.times and key.startswith(self._prefix):
            self.times -= 1
            raise Conflict("somebody was faster")
        return self._registry.put(key, value, expected_rev)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)
