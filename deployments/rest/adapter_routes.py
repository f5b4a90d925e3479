"""The endpoints that publish, name, show and retire adapters, in the words of the command line.

An admin's key may all; a tenant's key the same with its own adapters, where its record has the flag
self_publish. To it other tenants' adapters are not found, in the same words as unknown ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from deployments.canary.trial_counts import Trial
from deployments.changes.adapters import Adapters, unused
from deployments.changes.placing import Placing
from deployments.changes.tenants import Tenants
from deployments.control.publish_order import PublishOrder, Source
from deployments.ingress.auth import Caller
from deployments.ingress.probes import answered
from deployments.ingress.replicas import Replicas
from deployments.ingress.serving import Serving
from deployments.orders.pin_keeper import PinKeeper
from deployments.orders.version_orders import VersionOrders
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import is_digest
from deployments.registry.version_record import VersionRecord
from deployments.rest.adapter_views import adapter_view, resident_view
from deployments.rest.endpoints import Desk, add, flag, own_tenant, page, page_limit
from deployments.rest.rest_bodies import PromoteBody, PublishBody, RollbackBody
from deployments.rest.upload_forms import UploadForms
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, ObjectStore, object_prefix
from engine.errors import InvalidRequest, NotFound, Unavailable

logger = logging.getLogger(__name__)
STATUS_TIMEOUT_S = 3.0
FILES = (CONFIG, TENSORS, MANIFEST)


class Control(Protocol):
    """What needs torch, or one process for all. Raises the errors of `engine.errors`."""

    async def stage(self, order: PublishOrder) -> VersionRecord: ...

    async def register(self, version: VersionRecord, placing: Placing) -> AdapterRecord: ...

    async def sweep(self, dry_run: bool) -> Mapping[str, Any]: ...

    async def observe(self, report: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def trial(self, model: str) -> Mapping[str, Any] | None:
        """What the gate has seen of the canary of `model` (`tenant/name`)."""
        ...

    async def lease_tokens(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `token_book`."""
        ...

    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> Mapping[str, Any]:
        """See `UsageKeeper.usage`."""
        ...


@dataclass(frozen=True, slots=True)
class AdapterRoutes:
    """The handlers.

    desk  see it for who may what
    """

    desk: Desk
    adapters: Adapters
    tenants: Tenants
    control: Control
    replicas: Replicas
    keeper: PinKeeper
    serving: Serving
    store: ObjectStore
    uploads: UploadForms

    @property
    def _orders(self) -> VersionOrders:
        return VersionOrders(self.replicas)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/adapters")
        one = "/{tenant}/{name}"
        version = one + "/versions/{version}"
        add(router, "GET", "", self.list, query=("tenant", "limit", "after"))
        add(router, "POST", "", self.publish)
        add(router, "GET", "/limits", self.limits)
        add(router, "GET", one, self.show)
        add(router, "DELETE", one, self.retire, query=("now",))
        add(router, "POST", one + "/promote", self.promote)
        add(router, "POST", one + "/rollback", self.roll_back)
        add(router, "DELETE", one + "/aliases/{alias}", self.remove_alias)
        add(router, "DELETE", version, self.retire, query=("now",))
        add(router, "GET", version + "/files/{file}", self.download)
        return router

    # Showing --------------------------------------------------------------------------------------
    async def list(self, request: Request, tenant: str | None = None, after: str = "") -> Response:
        caller = await self.desk.publisher(request)
        tenant = own_tenant(caller, tenant)
        limit = page_limit(request)
        if tenant is not None:
            await asyncio.to_thread(self.tenants.get, tenant)
        records, has_more = await asyncio.to_thread(self.adapters.page, tenant, after, limit)
        statuses = await self._statuses()
        views = [resident_view(r, statuses, caller) for r in records]
        return page(views, records[-1].model if records else None, has_more)

    async def show(self, request: Request, tenant: str, name: str) -> Response:
        caller = await self.desk.owner(request, tenant, name)
        record = await asyncio.to_thread(self.adapters.get, tenant, name)
        view = resident_view(record, await self._statuses(), caller)
        return JSONResponse({**view, "trial": await self._trial(record)})

    async def download(
        self, request: Request, tenant: str, name: str, version: str, file: str
    ) -> Response:
        """A stored file of a version: what was published, or its manifest."""
        await self.desk.owner(request, tenant, name)
        record = await asyncio.to_thread(self.adapters.get, tenant, name)
        if file not in FILES:
            raise NotFound(f"A version has the files {', '.join(FILES)}.", param="file")
        ref = record.find(version).ref
        key = f"{object_prefix(tenant, ref.digest)}/{file}"
        size = await asyncio.to_thread(self.store.size, key)
        if size is None:
            raise NotFound(
                f"The stored object has lost its {file}. Publish its files again.", param="file"
            )

        def pieces() -> Iterator[bytes]:
            yield from self.store.read(key)

        headers = {"content-length": str(size), "x-loraplex-adapter-version": ref.digest}
        return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)

    async def limits(self, request: Request) -> Response:
        """What a publisher can know before it sends anything."""
        await self.desk.publisher(request)
        return JSONResponse({"object": "limits", "max_upload_bytes": self.uploads.max_bytes})

    # Publishing -----------------------------------------------------------------------------------
    async def publish(self, request: Request) -> Response:
        """From JSON (a folder or a prefix), or a multipart form with the adapter's files."""
        caller = await self.desk.publisher(request)
        if request.headers.get("content-type", "").startswith("multipart/"):
            async with self.uploads.stored(request, lambda b: self._owner(caller, b)) as form:
                return await self._publish(caller, *form)
        body = await self.desk.body(request, PublishBody)
        if (body.folder is None) == (body.prefix is None):
            raise InvalidRequest(
                "Give one of folder and prefix, or upload the files.", param="folder"
            )
        own = caller.tenant is not None
        return await self._publish(caller, body, Source(body.folder, own, body.prefix))

    async def _publish(self, caller: Caller, body: PublishBody, source: Source) -> Response:
        """Check and store; ask the probes; then the name changes, or nothing does."""
        placing, probes = body.placing(), body.asked()
        order = PublishOrder(
            self._owner(caller, body), body.name, source, caller.signature, body.base
        )
        version = await self.control.stage(order)
        # Its bytes may have been mended just now, and the probes ask for them.
        await self._orders.retry([version.ref])
        if probes:
            tenant = await asyncio.to_thread(self.tenants.get, order.tenant)
            version = await answered(
                self.serving, version, tenant.tenant(), probes, own=caller.tenant is not None
            )
        record = await self.control.register(version, placing)
        digest = version.ref.digest
        logger.info("%s published %s of %s as %s", order.by, digest, record.model, placing.alias)
        return JSONResponse({**adapter_view(record, caller), "version": digest}, status_code=201)

    # Naming and retiring --------------------------------------------------------------------------
    async def promote(self, request: Request, tenant: str, name: str) -> Response:
        caller = await self.desk.owner(request, tenant, name)
        body = await self.desk.body(request, PromoteBody)
        return await self._change(
            caller,
            f"promoted {body.version} of {tenant}/{name} as {body.alias}",
            lambda: self.adapters.promote(
                tenant, name, body.version, body.placing(), expect=body.expect
            ),
        )

    async def roll_back(self, request: Request, tenant: str, name: str) -> Response:
        caller = await self.desk.owner(request, tenant, name)
        body = await self.desk.body(request, RollbackBody)
        return await self._change(
            caller,
            f"rolled {tenant}/{name}@{body.alias} back",
            lambda: self.adapters.roll_back(
                tenant,
                name,
                body.alias,
                expect=body.expect,
                why=f"rolled back by {caller.signature}",
            ),
        )

    async def remove_alias(self, request: Request, tenant: str, name: str, alias: str) -> Response:
        caller = await self.desk.owner(request, tenant, name)
        return await self._change(
            caller,
            f"removed {tenant}/{name}@{alias}",
            lambda: self.adapters.remove_alias(tenant, name, alias),
        )

    async def retire(
        self,
        request: Request,
        tenant: str,
        name: str,
        version: str | None = None,
    ) -> Response:
        """?now=true: running requests of what is retired end at once, with an error; not those of
        bytes that another name of the tenant still serves (`shared` in the answer)."""
        now = flag(request, "now")
        caller = await self.desk.owner(request, tenant, name)
        if version is not None and not is_digest(version):
            # Once its version is retired, the name `canary` stands for nothing.
            found = await asyncio.to_thread(self.adapters.get, tenant, name)
            version = found.find(version).ref.digest
        record = await asyncio.to_thread(
            self.adapters.retire, tenant, name, caller.signature, version
        )
        logger.info("%s retired %s of %s/%s", caller.hint, version or "all", tenant, name)
        await self.desk.catalog.refresh()
        refs = unused(record, version, self.desk.catalog.adapters(tenant))
        await self._orders.drop(refs, now)
        if version is None:
            await self.keeper.forget(tenant, name)
        dead = {v.ref.digest for v in record.tombstones(version)}
        shared = sorted(dead - {ref.digest for ref in refs})
        return JSONResponse({**adapter_view(record, caller), "shared": shared})

    async def _change(
        self, caller: Caller, what: str, change: Callable[[], AdapterRecord]
    ) -> Response:
        """what: the caller has done, for the log."""
        record = await asyncio.to_thread(change)
        logger.info("%s %s: production is %s", caller.hint, what, record.current)
        await self._orders.retry([v.ref for v in record.standing()])
        return JSONResponse(adapter_view(record, caller))

    def _owner(self, caller: Caller, body: PublishBody) -> str:
        """Whose the adapter is to be. Raises NotFound, InvalidRequest."""
        tenant = own_tenant(caller, body.tenant)
        if tenant is None:
            raise InvalidRequest("tenant: an admin says whose adapter it is.", param="tenant")
        return tenant

    async def _trial(self, record: AdapterRecord) -> Mapping[str, Any] | None:
        """What the gate says of the canary that runs, once it has seen some of it."""
        trial = Trial.of(record)
        if trial is None:
            return None
        try:
            known = await self.control.trial(record.model)
        except Unavailable:
            return None
        return known if known is not None and known["number"] == trial.number else None

    async def _statuses(self) -> Sequence[Mapping[str, Any]]:
        try:
            return await self.replicas.statuses(STATUS_TIMEOUT_S)
        except Unavailable:
            return []
