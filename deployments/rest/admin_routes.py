"""The endpoints of an admin key alone: tenants, replicas and the object store, in the words of the
command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from deployments.changes.tenants import Tenants
from deployments.ingress.replicas import Replicas
from deployments.registry.records import TenantRecord
from deployments.rest.adapter_routes import STATUS_TIMEOUT_S, Control
from deployments.rest.adapter_views import tenant_fields, tenant_view
from deployments.rest.endpoints import Desk, add, page, page_limit
from deployments.rest.rest_bodies import NoFields, SweepBody, TenantBody, TenantLimits
from engine.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Admin:
    """The endpoints' handlers."""

    desk: Desk
    tenants: Tenants
    control: Control
    replicas: Replicas

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        one = "/tenants/{tenant}"
        add(router, "GET", "/replicas", self.list_replicas)
        add(router, "GET", "/tenants", self.list_tenants, query=("limit", "after"))
        add(router, "POST", "/tenants", self.create_tenant)
        add(router, "PATCH", one, self.change_tenant)
        add(router, "POST", one + "/rotate-key", self.rotate_key)
        add(router, "POST", one + "/suspend", self.suspend)
        add(router, "POST", one + "/resume", self.resume)
        add(router, "POST", "/store/sweep", self.sweep)
        return router

    async def list_replicas(self, request: Request) -> Response:
        """What each that answers says of itself: its processes, what is resident, its counters."""
        await self.desk.admin(request)
        try:
            statuses = await self.replicas.statuses(STATUS_TIMEOUT_S)
        except Unavailable:
            statuses = []
        data = [{"object": "replica", **status} for status in statuses]
        return JSONResponse({"object": "list", "data": data})

    async def list_tenants(self, request: Request, after: str = "") -> Response:
        await self.desk.admin(request)
        limit = page_limit(request)
        views, has_more = await asyncio.to_thread(self.tenants.views, after, limit)
        last = views[-1].record.id if views else None
        return page([tenant_view(v) for v in views], last, has_more)

    async def create_tenant(self, request: Request) -> Response:
        await self.desk.admin(request)
        body = await self.desk.body(request, TenantBody)
        flags = tuple(flag for flag, on in body.switches().items() if on)
        wanted = TenantRecord(body.id, flags=flags, **body.given())
        record, key = await asyncio.to_thread(self.tenants.create, wanted)
        return JSONResponse({**tenant_fields(record), "key": key}, status_code=201)

    async def change_tenant(self, request: Request, tenant: str) -> Response:
        """What the body names becomes so; the rest stays."""
        await self.desk.admin(request)
        body = await self.desk.body(request, TenantLimits)

        def changed(record: TenantRecord) -> TenantRecord:
            for flag, on in body.switches().items():
                record = record.with_flag(flag, on)
            return replace(record, **body.given())

        record = await asyncio.to_thread(self.tenants.change, tenant, changed)
        return JSONResponse(tenant_fields(record))

    async def rotate_key(self, request: Request, tenant: str) -> Response:
        await self.desk.admin(request)
        await self.desk.body(request, NoFields)
        key = await asyncio.to_thread(self.tenants.rotate_key, tenant)
        return JSONResponse({"object": "key", "tenant": tenant, "key": key})

    async def suspend(self, request: Request, tenant: str) -> Response:
        return await self._change(request, tenant, self.tenants.suspend)

    async def resume(self, request: Request, tenant: str) -> Response:
        return await self._change(request, tenant, self.tenants.resume)

    async def sweep(self, request: Request) -> Response:
        """Remove from the object store what nobody needs any more; says what."""
        await self.desk.admin(request)
        body = await self.desk.body(request, SweepBody)
        return JSONResponse({"object": "sweep", **await self.control.sweep(body.dry_run)})

    async def _change(
        self, request: Request, tenant: str, change: Callable[[str], TenantRecord]
    ) -> Response:
        await self.desk.admin(request)
        await self.desk.body(request, NoFields)
        return JSONResponse(tenant_fields(await asyncio.to_thread(change, tenant)))
