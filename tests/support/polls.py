"""An ingress's polls of its registry, counted: what it knows after so many, however slow the
machine is."""

from __future__ import annotations

import asyncio

from deployments.registry.registry import Changes, Gone, Registry

PATIENCE_S = 120.0


class Polls:
    """Of the one ingress that polls `registry`."""

    def __init__(self, registry: Registry) -> None:
        self._begun = 0
        changes = registry.changes

        def counted(since: int) -> Changes | Gone:
            self._begun += 1
            return changes(since)

        registry.changes = counted  # type: ignore[method-assign]

    async def two(self) -> None:
        """The next begins after what has been changed by now; the ingress knows that change once it
        asks again."""
        last = self._begun + 2
        async with asyncio.timeout(PATIENCE_S):
            while self._begun < last:
                await asyncio.sleep(0.01)
