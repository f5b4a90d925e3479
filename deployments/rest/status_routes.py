"""GET /v1/status: the whole service at one moment, for `loraplex top`. For admin keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from deployments.ingress.replicas import Replicas
from deployments.rest.adapter_routes import STATUS_TIMEOUT_S
from deployments.rest.endpoints import Desk, add, page_limit
from deployments.rest.service_status import service_status
from engine.errors import Unavailable


@dataclass(frozen=True, slots=True)
class StatusRoutes:
    """wall: Unix seconds."""

    desk: Desk
    replicas: Replicas
    wall: Callable[[], float]

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        add(router, "GET", "/status", self.status, query=("limit",))
        return router

    async def status(self, request: Request) -> Response:
        """See `service_status`; `limit` says how many tenants are told by name. No replicas where
        none answers."""
        await self.desk.admin(request)
        max_tenants = page_limit(request)
        try:
            replicas = await self.replicas.activity(STATUS_TIMEOUT_S)
        except Unavailable:
            replicas = []
        return JSONResponse(service_status(replicas, self.wall(), max_tenants))
