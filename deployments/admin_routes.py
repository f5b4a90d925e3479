"""The endpoints of an admin key: adapters and tenants, in the words of the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from deployments.adapter_views import adapter_view, resident_view, tenant_fields, tenant_view
from deployments.auth import Caller, bearer_key
from deployments.catalog import Catalog
from deployments.edge import read_json
from deployments.generation import Model
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import ADAPTERS, TenantRecord, adapter_key, check_name
from deployments.registry.registry import Registry
from deployments.tenants import Tenants
from engine.errors import InvalidRequest, NotFound, Unavailable

B = TypeVar("B", bound=BaseModel)
STATUS_TIMEOUT_S = 3.0


class Control(Protocol):
    """What changes adapters. Raises the errors of `engine.errors`."""

    async def publish(
        self, *, tenant: str, name: str, folder: str, by: str, base: str | None
    ) -> AdapterRecord: ...

    async def retire(self, *, tenant: str, name: str, by: str) -> AdapterRecord: ...


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class PublishBody(_Body):
    tenant: str
    name: str
    folder: str = Field(min_length=1, max_length=4096)
    base: str | None = None


class TenantBody(_Body):
    id: str
    weight: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    max_concurrent: Annotated[int, Field(ge=1)] = 256
    max_queued: Annotated[int, Field(ge=1)] = 128


@dataclass(frozen=True, slots=True)
class Admin:
    """The endpoints' handlers. max_body_bytes: of a request's body."""

    catalog: Catalog
    registry: Registry
    tenants: Tenants
    control: Control
    replicas: Model
    max_body_bytes: int

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        add = router.add_api_route
        add("/adapters", self.list_adapters, methods=["GET"])
        add("/adapters", self.publish_adapter, methods=["POST"])
        add("/adapters/{tenant}/{name}", self.show_adapter, methods=["GET"])
        add("/adapters/{tenant}/{name}", self.retire_adapter, methods=["DELETE"])
        add("/replicas", self.list_replicas, methods=["GET"])
        add("/tenants", self.list_tenants, methods=["GET"])
        add("/tenants", self.create_tenant, methods=["POST"])
        add("/tenants/{tenant}/rotate-key", self.rotate_key, methods=["POST"])
        return router

    async def list_adapters(self, request: Request, tenant: str | None = None) -> Response:
        await self._caller(request)
        prefix = ADAPTERS if tenant is None else f"{ADAPTERS}{check_name(tenant, 'tenant')}/"
        listing = await asyncio.to_thread(self.registry.list, prefix)
        records = [AdapterRecord.from_value(e.value) for e in listing.entries]
        statuses = await self._statuses()
        return _list([resident_view(r, statuses) for r in records])

    async def show_adapter(self, request: Request, tenant: str, name: str) -> Response:
        await self._caller(request)
        record = await self._record(tenant, name)
        return JSONResponse(resident_view(record, await self._statuses()))

    async def publish_adapter(self, request: Request) -> Response:
        by = (await self._caller(request)).hint
        body = _parse(PublishBody, await read_json(request, self.max_body_bytes))
        record = await self.control.publish(**body.model_dump(), by=by)
        return JSONResponse(adapter_view(record), status_code=201)

    async def retire_adapter(self, request: Request, tenant: str, name: str) -> Response:
        by = (await self._caller(request)).hint
        await self._record(tenant, name)
        record = await self.control.retire(tenant=tenant, name=name, by=by)
        return JSONResponse(adapter_view(record))

    async def list_replicas(self, request: Request) -> Response:
        """What each that answers says of itself: its processes, what is resident, its counters."""
        await self._caller(request)
        return _list([{"object": "replica", **status} for status in await self._statuses()])

    async def list_tenants(self, request: Request) -> Response:
        await self._caller(request)
        return _list([tenant_view(v) for v in await asyncio.to_thread(self.tenants.views)])

    async def create_tenant(self, request: Request) -> Response:
        await self._caller(request)
        body = _parse(TenantBody, await read_json(request, self.max_body_bytes))
        wanted = TenantRecord(**body.model_dump())
        record, key = await asyncio.to_thread(self.tenants.create, wanted)
        return JSONResponse({**tenant_fields(record), "key": key}, status_code=201)

    async def rotate_key(self, request: Request, tenant: str) -> Response:
        await self._caller(request)
        key = await asyncio.to_thread(self.tenants.rotate_key, tenant)
        return JSONResponse({"object": "key", "tenant": tenant, "key": key})

    async def _caller(self, request: Request) -> Caller:
        """Raises Unauthenticated, PermissionDenied."""
        key = bearer_key(request.headers.get("authorization"))
        return (await self.catalog.caller(key)).as_admin()

    async def _record(self, tenant: str, name: str) -> AdapterRecord:
        key = adapter_key(check_name(tenant, "tenant"), check_name(name, "name"))
        entry = await asyncio.to_thread(self.registry.get, key)
        if entry is None:
            raise NotFound(f"There is no adapter {tenant}/{name}.", param="name")
        return AdapterRecord.from_value(entry.value)

    async def _statuses(self) -> list[Mapping[str, Any]]:
        try:
            return await self.replicas.statuses(STATUS_TIMEOUT_S)
        except Unavailable:
            return []


def _list(data: list[dict[str, Any]]) -> JSONResponse:
    return JSONResponse({"object": "list", "data": data})


def _parse(body_type: type[B], values: Any) -> B:
    """Raises InvalidRequest that names the field."""
    if not isinstance(values, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        return body_type.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(p) for p in problem["loc"])
        raise InvalidRequest(f"{where}: {problem['msg']}.", param=where) from None
