"""The ingress: the REST side's parts put together, as an ASGI application. No torch, no Ray.

`Parts` are what a deployment (or a test) supplies; `create_app` does the rest.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from deployments.changes.adapters import Adapters
from deployments.changes.tenants import Tenants
from deployments.config import AppConfig
from deployments.ingress.catalog import Catalog
from deployments.ingress.chat_template import ChatTemplate
from deployments.ingress.expansion import ModelLimits
from deployments.ingress.model_objects import BaseModelFacts
from deployments.ingress.prompts import Prompts
from deployments.ingress.replicas import Replicas
from deployments.ingress.serving import Serving, Sources
from deployments.ingress.token_limits import TokenLimits
from deployments.ingress.tokenising import Tokeniser
from deployments.ingress.trials import Trials
from deployments.orders.limit_keeper import LimitKeeper
from deployments.orders.pin_keeper import PinKeeper
from deployments.orders.service_keeper import ServiceKeeper
from deployments.registry.registry import Registry
from deployments.rest.adapter_routes import AdapterRoutes, Control
from deployments.rest.admin_routes import Admin
from deployments.rest.edge import Edge, add_error_handlers
from deployments.rest.endpoints import Desk
from deployments.rest.openai_routes import openai_router
from deployments.rest.status_routes import StatusRoutes
from deployments.rest.upload_forms import UploadForms
from deployments.rest.usage_routes import UsageRoutes
from deployments.rest.warmth_routes import WarmthRoutes
from deployments.telemetry.following import Follower
from deployments.telemetry.ingress_metrics import read_catalog, read_router
from deployments.telemetry.metering import Metering
from deployments.telemetry.request_metrics import RequestMetrics
from deployments.telemetry.tracing import Tracing
from engine.adapters.store import ObjectStore
from engine.model.spec import BackboneSpec
from router.admission import Admission
from router.counters import RouterCounters

READY_TIMEOUT_S = 5.0


def _sources() -> Sources:
    return Sources(
        wall=time.time,
        monotonic=time.monotonic,
        bits=random.SystemRandom().getrandbits,
        word=lambda: secrets.token_hex(8),
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """What the ingress is given.

    base_revision     of the folder that the replicas serve
    metering          None: nothing is counted
    router_counters   of this process's router; None while it has none
    adds_request_id   False behind Ray Serve's proxy, which adds the header itself
    """

    config: AppConfig
    base_revision: str
    registry: Registry
    replicas: Replicas
    control: Control
    store: ObjectStore
    sources: Sources = field(default_factory=_sources)
    adds_request_id: bool = True
    tracing: Tracing | None = None
    metering: Metering | None = None
    router_counters: Callable[[], RouterCounters | None] = lambda: None


def create_app(parts: Parts) -> FastAPI:
    """The application. Its lifespan keeps the copy of the registry fresh."""
    limits, sources = parts.config.ingress, parts.sources
    catalog = Catalog(
        parts.registry,
        clock=sources.monotonic,
        poll_s=limits.registry_poll_s,
        negative_ttl_s=limits.negative_ttl_s,
    )
    tokenising = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenise")
    serving = _serving(parts, catalog, tokenising)
    tenants = Tenants(parts.registry, clock=sources.wall, random_bytes=secrets.token_bytes)

    desk = Desk(catalog, limits.max_body_bytes)
    warmth = WarmthRoutes.of(parts.config, desk, parts.registry, parts.replicas, sources.wall)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await catalog.refresh()
        works = [warmth.keeper.run(), *_works(parts, catalog, serving)]
        tasks = [asyncio.create_task(work) for work in works]
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        tokenising.shutdown(wait=False, cancel_futures=True)
        if parts.metering is not None:
            parts.metering.close()
        if parts.tracing is not None:
            await asyncio.to_thread(parts.tracing.close)

    edge = Middleware(
        Edge,
        new_id=lambda: f"req-{sources.word()}",
        adds_header=parts.adds_request_id,
        follower=Follower(parts.tracing, parts.config.telemetry.access_log, sources.monotonic),
    )
    app = FastAPI(
        lifespan=lifespan,
        middleware=[edge],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    add_error_handlers(app)
    app.include_router(openai_router(serving, catalog, limits.max_body_bytes))
    adapters = _adapter_routes(parts, desk, tenants, serving, warmth.keeper)
    app.include_router(adapters.router())
    admin = Admin(desk, tenants, parts.control, parts.replicas)
    app.include_router(admin.router())
    app.include_router(warmth.router())
    app.include_router(StatusRoutes(desk, parts.replicas, sources.wall).router())
    app.include_router(UsageRoutes(desk, tenants, parts.control).router())
    _add_probes(app, serving)
    return app


def _works(
    parts: Parts, catalog: Catalog, serving: Serving
) -> Iterator[Coroutine[None, None, None]]:
    """What goes on as long as the application does."""
    yield catalog.run()
    yield LimitKeeper(catalog, parts.replicas).run()
    yield serving.trials.run(parts.control)
    yield serving.tokens.run()
    if parts.config.replica.max_replicas > 1:
        yield ServiceKeeper(parts.replicas).run()
    if parts.metering is not None:
        read_router(parts.metering, parts.router_counters)
        read_catalog(parts.metering, catalog)
        yield parts.metering.run()


def _adapter_routes(
    parts: Parts, desk: Desk, tenants: Tenants, serving: Serving, keeper: PinKeeper
) -> AdapterRoutes:
    publish = parts.config.publish
    return AdapterRoutes(
        desk=desk,
        adapters=Adapters(
            parts.registry,
            parts.store,
            keep_versions=publish.keep_versions,
            clock=parts.sources.wall,
        ),
        tenants=tenants,
        control=parts.control,
        replicas=parts.replicas,
        keeper=keeper,
        serving=serving,
        store=parts.store,
        uploads=UploadForms(
            parts.store, parts.sources, publish.max_upload_bytes, publish.max_uploads
        ),
    )


def _add_probes(app: FastAPI, serving: Serving) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """This process answers."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, Any]:
        """At least one replica can answer."""
        return {"status": "ready", "replicas": await serving.ready(READY_TIMEOUT_S)}


def _serving(parts: Parts, catalog: Catalog, executor: Executor) -> Serving:
    config, metering = parts.config, parts.metering
    folder = config.base.path
    spec = BackboneSpec.load(folder)
    tokeniser = Tokeniser.load(
        folder, executor=executor, inline_chars=config.ingress.tokenise_inline_chars
    )
    return Serving(
        catalog=catalog,
        prompts=Prompts(ChatTemplate.load(folder), tokeniser, config.max_model_len()),
        replicas=parts.replicas,
        admission=Admission(parts.sources.monotonic),
        trials=Trials(config.gate, catalog, parts.sources.monotonic, parts.sources.word()),
        tokens=TokenLimits(parts.control, config.ingress.num_replicas, parts.sources.monotonic),
        base=BaseModelFacts(
            config.base.name, parts.base_revision, int((folder / "config.json").stat().st_mtime)
        ),
        limits=ModelLimits(
            max_model_len=config.max_model_len(),
            vocab_size=spec.vocab_size,
            eos_token_ids=spec.eos_token_ids,
            max_stop=config.ingress.max_stop,
        ),
        max_choices=config.ingress.max_choices,
        sources=parts.sources,
        timeout_s=config.ingress.request_timeout_s,
        max_in_flight=config.ingress.max_in_flight,
        metrics=None if metering is None else RequestMetrics(metering, parts.sources.monotonic),
    )
