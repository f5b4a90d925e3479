"""The endpoints that keep adapters near: warm-ups before a campaign, and pins. For admin keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from deployments.auth import Caller, bearer_key
from deployments.catalog import Catalog
from deployments.config import AppConfig
from deployments.edge import read_json
from deployments.generation import Model
from deployments.pin_keeper import PinKeeper, slots_of
from deployments.pins import Pins
from deployments.registry.pin_record import PinRecord
from deployments.registry.records import TenantRecord, check_name, tenant_key
from deployments.registry.registry import Registry
from deployments.rest_bodies import Body, parse
from deployments.tier_orders import prefetch_order
from engine.engine import ITEM_BYTES
from engine.errors import NotFound, Unavailable
from engine.types import AdapterRef, Tenant
from router.owners import owners

TIMEOUT_S = 5.0
NEARER = {"device": 2, "host": 1}


class WarmthBody(Body):
    """replicas: how many of the adapter's owners, the first of them being where its requests go."""

    tier: Literal["host", "device"] = "device"
    replicas: Literal["owner", "all"] | int = Field(default="owner")

    def num_replicas(self) -> int:
        """0: all."""
        if isinstance(self.replicas, int):
            return max(1, self.replicas)
        return 1 if self.replicas == "owner" else 0


class PrefetchBody(WarmthBody):
    """retry: also what has failed to load is tried again; false: its failure is told."""

    retry: bool = True


@dataclass(frozen=True, slots=True)
class WarmthRoutes:
    """The handlers. keeper: pushes a change of pins. vnodes: the router's. `of` composes them."""

    catalog: Catalog
    registry: Registry
    pins: Pins
    keeper: PinKeeper
    replicas: Model
    vnodes: int
    max_body_bytes: int

    @classmethod
    def of(
        cls,
        config: AppConfig,
        catalog: Catalog,
        registry: Registry,
        replicas: Model,
        clock: Callable[[], float],
    ) -> WarmthRoutes:
        """clock: Unix seconds."""
        engine = config.engine_config()
        pins = Pins(registry, config.pins.budgets(engine), ITEM_BYTES[engine.model.dtype], clock)
        vnodes = config.router.vnodes
        keeper = PinKeeper(catalog, pins, replicas, vnodes)
        return cls(catalog, registry, pins, keeper, replicas, vnodes, config.ingress.max_body_bytes)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1")
        add = router.add_api_route
        one = "/adapters/{tenant}/{name}"
        add(one + "/prefetch", self.prefetch, methods=["POST"])
        add(one + "/pin", self.pin, methods=["PUT"])
        add(one + "/pin", self.unpin, methods=["DELETE"])
        add("/pins", self.list, methods=["GET"])
        return router

    async def prefetch(self, request: Request, tenant: str, name: str) -> Response:
        """Order it nearer and say how far it is; 202 until it is there. Asking again does no harm,
        and with `retry` false is how to follow it."""
        await self._caller(request)
        body = parse(PrefetchBody, await read_json(request, self.max_body_bytes))
        ref = self._ref(tenant, name)
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
            "replicas": [dict(a) for a in places],
        }
        return JSONResponse(view, status_code=200 if is_done else 202)

    async def pin(self, request: Request, tenant: str, name: str) -> Response:
        by = (await self._caller(request)).hint
        body = parse(WarmthBody, await read_json(request, self.max_body_bytes))
        ref = self._ref(tenant, name)
        record = await asyncio.to_thread(
            self.pins.pin,
            tenant,
            name,
            ref.num_elements,
            body.tier == "device",
            body.num_replicas(),
            by,
        )
        await self._push()
        return JSONResponse(self._view(record))

    async def unpin(self, request: Request, tenant: str, name: str) -> Response:
        await self._caller(request)
        record = await asyncio.to_thread(self.pins.unpin, tenant, name)
        await self._push()
        return JSONResponse({**self._view(record), "pinned": False})

    async def list(self, request: Request) -> Response:
        await self._caller(request)
        records = await asyncio.to_thread(self.pins.all)
        return JSONResponse({"object": "list", "data": [self._view(r) for r in records]})

    async def _push(self) -> None:
        """The registry has it: replicas that can't be told now are told by the keeper."""
        with suppress(Unavailable):
            await self.keeper.push()

    def _view(self, record: PinRecord) -> dict[str, Any]:
        return {
            "object": "pin",
            "model": f"{record.tenant}/{record.name}",
            "tier": "device" if record.on_device else "host",
            "replicas": record.replicas or "all",
            "num_bytes": self.pins.num_bytes(record),
            "by": record.by,
            "created_s": record.created_s,
            "pinned": True,
        }

    def _ref(self, tenant: str, name: str) -> AdapterRef:
        """What the bare name stands for. Raises NotFound."""
        record = self.catalog.adapter(check_name(tenant, "tenant"), check_name(name, "name"))
        if record is None or record.ref is None:
            raise NotFound(f"There is no adapter {tenant}/{name} in service.", param="name")
        return record.ref

    async def _tenant(self, tenant: str) -> Tenant | None:
        entry = await asyncio.to_thread(self.registry.get, tenant_key(tenant))
        return None if entry is None else TenantRecord.from_value(entry.value).tenant()

    async def _caller(self, request: Request) -> Caller:
        """Raises Unauthenticated, PermissionDenied."""
        key = bearer_key(request.headers.get("authorization"))
        return (await self.catalog.caller(key)).as_admin()
