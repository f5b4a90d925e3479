"""The endpoints of an admin key alone: tenants, replicas and the object store, in the words of the
command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from deployments.adapter_routes import STATUS_TIMEOUT_S, Control
from deployments.adapter_views import tenant_fields, tenant_view
from deployments.auth import Caller, bearer_key
from deployments.catalog import Catalog
from deployments.edge import read_json
from deployments.generation import Model
from deployments.registry.records import TenantRecord
from deployments.rest_bodies import (
    SweepBody,
    TenantBody,
    TenantLimits,
    page,
    page_limit,
    parse,
)
from deployments.tenants import Tenants
from engine.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Admin:
    """The endpoints' handlers. max_body_bytes: of a request's body."""

    catalog: Catalog
    tenants: Tenants
    control: Control
    replicas: Model
    max_body_bytes: int

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        add = router.add_api_route
        add("/replicas", self.list_replicas, methods=["GET"])
        add("/tenants", self.list_tenants, methods=["GET"])
        add("/tenants", self.create_tenant, methods=["POST"])
        add("/tenants/{tenant}", self.change_tenant, methods=["PATCH"])
        add("/tenants/{tenant}/rotate-key", self.rotate_key, methods=["POST"])
        add("/tenants/{tenant}/suspend", self.suspend, methods=["POST"])
        add("/tenants/{tenant}/resume", self.resume, methods=["POST"])
        add("/store/sweep", self.sweep, methods=["POST"])
        return router

    async def list_replicas(self, request: Request) -> Response:
        """What each that answers says of itself: its processes, what is resident, its counters."""
        await self._caller(request)
        try:
            statuses = await self.replicas.statuses(STATUS_TIMEOUT_S)
        except Unavailable:
            statuses = []
        data = [{"object": "replica", **status} for status in statuses]
        return JSONResponse({"object": "list", "data": data})

    async def list_tenants(self, request: Request, after: str = "") -> Response:
        await self._caller(request)
        limit = page_limit(request.query_params.get("limit"))
        views, has_more = await asyncio.to_thread(self.tenants.views, after, limit)
        last = views[-1].record.id if views else None
        return page([tenant_view(v) for v in views], last, has_more)

    async def create_tenant(self, request: Request) -> Response:
        await self._caller(request)
        body = parse(TenantBody, await read_json(request, self.max_body_bytes))
        flags = tuple(flag for flag, on in body.switches().items() if on)
        wanted = TenantRecord(body.id, flags=flags, **body.given())
        record, key = await asyncio.to_thread(self.tenants.create, wanted)
        return JSONResponse({**tenant_fields(record), "key": key}, status_code=201)

    async def change_tenant(self, request: Request, tenant: str) -> Response:
        """What the body names becomes so; the rest stays."""
        await self._caller(request)
        body = parse(TenantLimits, await read_json(request, self.max_body_bytes))

        def changed(record: TenantRecord) -> TenantRecord:
            for flag, on in body.switches().items():
                record = record.with_flag(flag, on)
            return replace(record, **body.given())

        record = await asyncio.to_thread(self.tenants.change, tenant, changed)
        return JSONResponse(tenant_fields(record))

    async def rotate_key(self, request: Request, tenant: str) -> Response:
        await self._caller(request)
        key = await asyncio.to_thread(self.tenants.rotate_key, tenant)
        return JSONResponse({"object": "key", "tenant": tenant, "key": key})

    async def suspend(self, request: Request, tenant: str) -> Response:
        return await self._change(request, tenant, self.tenants.suspend)

    async def resume(self, request: Request, tenant: str) -> Response:
        return await self._change(request, tenant, self.tenants.resume)

    async def sweep(self, request: Request) -> Response:
        """Remove from the object store what nobody needs any more; says what."""
        await self._caller(request)
        body = parse(SweepBody, await read_json(request, self.max_body_bytes))
        return JSONResponse({"object": "sweep", **await self.control.sweep(body.dry_run)})

    async def _change(
        self, request: Request, tenant: str, change: Callable[[str], TenantRecord]
    ) -> Response:
        await self._caller(request)
        return JSONResponse(tenant_fields(await asyncio.to_thread(change, tenant)))

    async def _caller(self, request: Request) -> Caller:
        """Raises Unauthenticated, PermissionDenied."""
        key = bearer_key(request.headers.get("authorization"))
        return (await self.catalog.caller(key)).as_admin()
