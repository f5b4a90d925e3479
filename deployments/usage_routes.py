"""`GET /v1/usage`: what tenants have used; a tenant's key shows its own, an admin's everybody's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Request
from starlette.responses import Response

from deployments.auth import bearer_key
from deployments.catalog import Catalog
from deployments.rest_bodies import page, page_limit
from deployments.tenants import Tenants
from engine.errors import InvalidRequest, NotFound

QUERY = ("tenant", "limit", "after")


class UsageSource(Protocol):
    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> Mapping[str, Any]:
        """See `UsageKeeper.usage`. Raises Unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class UsageRoutes:
    catalog: Catalog
    tenants: Tenants
    control: UsageSource

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        router.add_api_route("/usage", self.usage, methods=["GET"])
        return router

    async def usage(self, request: Request) -> Response:
        caller = await self.catalog.caller(bearer_key(request.headers.get("authorization")))
        query = request.query_params
        unknown = sorted(set(query) - set(QUERY))
        if unknown:
            raise InvalidRequest(
                f"There is no query parameter {unknown[0][:80]!r} here, only {', '.join(QUERY)}.",
                param=unknown[0][:80],
            )
        limit, tenant = page_limit(query.get("limit")), query.get("tenant")
        if caller.tenant is not None:
            if tenant not in (None, caller.tenant.id):
                raise NotFound(f"There is no tenant {str(tenant)[:80]}.", param="tenant")
            tenant = caller.tenant.id
        elif tenant is not None:
            await asyncio.to_thread(self.tenants.get, tenant)
        only = None if tenant is None else [tenant]
        found = await self.control.usage(only, query.get("after", ""), limit)
        data = [{"object": "usage", **used} for used in found["data"]]
        return page(data, data[-1]["tenant"] if data else None, found["has_more"])
