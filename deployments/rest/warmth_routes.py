"""The endpoints that keep adapters near: warm-ups before a campaign, and pins.

An admin's key may all; a tenant's own, where its record has the flag self_publish, the same with
its own adapters: within its budget of pins and its quotas, and its loads are charged to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from deployments.changes.pins import Pins
from deployments.changes.tenants import no_tenant
from deployments.config import AppConfig
from deployments.ingress.auth import Caller
from deployments.ingress.replicas import Replicas
from deployments.orders.pin_keeper import PinKeeper, slots_of
from deployments.orders.tier_orders import prefetch_order
from deployments.registry.pin_record import PinRecord
from deployments.registry.records import TenantRecord, check_name, tenant_key
from deployments.registry.registry import Registry
from deployments.rest.adapter_views import place_view
from deployments.rest.endpoints import Desk, add, no_adapter, own_tenant
from deployments.rest.rest_bodies import PrefetchBody, WarmthBody
from engine.engine import ITEM_BYTES
from engine.errors import NotFound, Unavailable
from engine.types import AdapterRef, Tenant
from router.owners import owners

TIMEOUT_S = 5.0
NEARER = {"device": 2, "host": 1}


@dataclass(frozen=True, slots=True)
class WarmthRoutes:
    """The handlers. keeper: pushes a change of pins. vnodes: the router's. clock: Unix seconds.
    `of` composes them."""

    desk: Desk
    registry: Registry
    pins: Pins
    keeper: PinKeeper
    replicas: Replicas
    vnodes: int
    clock: Callable[[], float]

    @classmethod
    def of(
        cls,
        config: AppConfig,
        desk: Desk,
        registry: Registry,
        replicas: Replicas,
        clock: Callable[[], float],
    ) -> WarmthRoutes:
        """clock: Unix seconds."""
        engine = config.engine_config()
        pins = Pins(registry, config.pins.budgets(engine), ITEM_BYTES[engine.model.dtype])
        vnodes = config.router.vnodes
        keeper = PinKeeper(desk.catalog, pins, replicas, vnodes)
        return cls(desk, registry, pins, keeper, replicas, vnodes, clock)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        one = "/adapters/{tenant}/{name}"
        add(router, "POST", one + "/prefetch", self.prefetch)
        add(router, "PUT", one + "/pin", self.pin)
        add(router, "DELETE", one + "/pin", self.unpin)
        add(router, "GET", "/pins", self.list, query=("tenant",))
        return router

    async def prefetch(self, request: Request, tenant: str, name: str) -> Response:
        """Order it nearer and say how far it is; 202 until it is there. Asking again does no harm,
        and with `retry` false is how to follow it."""
        caller = await self.desk.owner(request, tenant, name)
        body = await self.desk.body(request, PrefetchBody)
        ref = await self._ref(tenant, name)
        slots = slots_of(await self.replicas.statuses(TIMEOUT_S))
        chosen = owners(slots, ref.ring_key, body.num_replicas(), self.vnodes)
        if not chosen:
            raise Unavailable("No replica answers yet. Try again.", code="not_ready")
        order = prefetch_order(
            ref,
            to_device=body.tier == "device",
            ordered=True,
            tenant=await self._tenant(tenant),
            slots=chosen,
            retry=body.retry,
        )
        answers = await self.replicas.tell("prefetch", order, TIMEOUT_S)
        places = sorted(answers, key=lambda a: chosen.index(a["slot"]))
        num_there = sum(NEARER.get(a["tier"], 0) >= NEARER[body.tier] for a in places)
        is_done = num_there == len(chosen)
        view = {
            "object": "prefetch",
            "model": ref.ring_key,
            "digest": ref.digest,
            "tier": body.tier,
            "done": is_done,
            "num_there": num_there,
            "num_replicas": len(chosen),
            "replicas": [place_view(a, caller.is_operator) for a in places],
        }
        return JSONResponse(view, status_code=200 if is_done else 202)

    async def pin(self, request: Request, tenant: str, name: str) -> Response:
        caller = await self.desk.owner(request, tenant, name)
        body = await self.desk.body(request, WarmthBody)
        ref = await self._ref(tenant, name)
        owner = await self._tenant(tenant)
        on_device = body.tier == "device"
        quota = None
        if owner is not None:
            quota = owner.max_device_bytes if on_device else owner.max_host_bytes
        wanted = PinRecord(
            tenant,
            name,
            on_device,
            body.num_replicas(),
            ref.num_elements,
            caller.signature,
            self.clock(),
        )
        await asyncio.to_thread(self.pins.pin, wanted, quota)
        await self.keeper.push_now()
        return JSONResponse(self._view(wanted, caller))

    async def unpin(self, request: Request, tenant: str, name: str) -> Response:
        caller = await self.desk.owner(request, tenant, name)
        record = await asyncio.to_thread(self.pins.unpin, tenant, name)
        await self.keeper.push_now()
        return JSONResponse({**self._view(record, caller), "pinned": False})

    async def list(self, request: Request, tenant: str | None = None) -> Response:
        caller = await self.desk.publisher(request)
        tenant = own_tenant(caller, tenant)
        if tenant is not None and await self._tenant(tenant) is None:
            raise no_tenant(tenant)
        records = await asyncio.to_thread(self.pins.all, tenant)
        return JSONResponse({"object": "list", "data": [self._view(r, caller) for r in records]})

    def _view(self, record: PinRecord, to: Caller) -> dict[str, Any]:
        return {
            "object": "pin",
            "model": f"{record.tenant}/{record.name}",
            "tier": "device" if record.on_device else "host",
            "replicas": record.replicas or "all",
            "num_bytes": self.pins.num_bytes(record),
            "by": to.shown(record.by),
            "created_s": record.created_s,
            "pinned": True,
        }

    async def _ref(self, tenant: str, name: str) -> AdapterRef:
        """What the bare name stands for. Raises NotFound."""
        record = await self.desk.catalog.find_adapter(tenant, name)
        if record is None:
            raise no_adapter(tenant, name)
        if record.ref is None:
            raise NotFound(
                f"{record.model} is not in service: it has no production version. Publish or"
                " promote one.",
                param="name",
            )
        return record.ref

    async def _tenant(self, tenant: str) -> Tenant | None:
        entry = await asyncio.to_thread(self.registry.get, tenant_key(check_name(tenant, "tenant")))
        return None if entry is None else TenantRecord.from_value(entry.value).tenant()
