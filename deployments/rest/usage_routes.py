"""`GET /v1/usage`: what tenants have used; a tenant's key shows its own, an admin's everybody's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Request
from starlette.responses import Response

from deployments.changes.tenants import Tenants
from deployments.rest.endpoints import Desk, add, own_tenant, page, page_limit
from engine.errors import InvalidRequest


class UsageSource(Protocol):
    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> Mapping[str, Any]:
        """See `UsageKeeper.usage`. Raises Unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class UsageRoutes:
    desk: Desk
    tenants: Tenants
    control: UsageSource

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        add(router, "GET", "/usage", self.usage, query=("tenant", "limit", "after"))
        return router

    async def usage(self, request: Request, tenant: str | None = None, after: str = "") -> Response:
        tenant = own_tenant(await self.desk.caller(request), tenant)
        limit = page_limit(request)
        if tenant is not None and after:
            raise InvalidRequest(
                "after goes on with a list of tenants, and this is the usage of one. Leave it out.",
                param="after",
            )
        if tenant is not None:
            await asyncio.to_thread(self.tenants.get, tenant)
        found = await self.control.usage(None if tenant is None else [tenant], after, limit)
        data = [{"object": "usage", **used} for used in found["data"]]
        return page(data, data[-1]["tenant"] if data else None, found["has_more"])
