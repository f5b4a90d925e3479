"""The router, as a class that a deployment's config names, which a test's process finds again."""

from __future__ import annotations

from typing import Any

from router.request_router import AdapterRouter
from tests.support import routers_here


class KnownRouter(AdapterRouter):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Serve pickles this class by value, but a module by its name.
        routers_here.ROUTERS[self._deployment_id.name] = self

    @property
    def num_in_progress(self) -> int:
        return self._loads.total
