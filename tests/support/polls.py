"""An ingress's polls of its registry, counted: what it knows after so many, however slow the
machine is."""

from __future__ import annotations

import asyncio
from typing import Any

from deployments.registry.registry import Changes, Gone, Registry

PATIENCE_S = 120.0


class Polls:
    """A registry that one ingress polls."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._begun = 0

    def changes(self, since: int) -> Changes | Gone:
        self._begun += 1
        return self._registry.changes(since)

    async def two(self) -> None:
        """The next begins after what has been changed by now; the ingress knows that change once it
        asks again."""
        last = self._begun + 2
        async with asyncio.timeout(PATIENCE_S):
            while self._begun < last:
                await asyncio.sleep(0.01)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)
