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

from deployments.adapter_views import adapter_view, resident_view
from deployments.adapters import Adapters, unused
from deployments.auth import Caller, bearer_key
from deployments.catalog import Catalog
from deployments.edge import read_json
from deployments.generation import Model
from deployments.orders import Order, Source
from deployments.placing import Placing
from deployments.probes import answered
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import is_digest
from deployments.registry.records import check_name
from deployments.registry.version_record import VersionRecord
from deployments.rest_bodies import PromoteBody, PublishBody, RollbackBody, page, page_limit, parse
from deployments.serving import Serving
from deployments.tenants import Tenants
from deployments.trial_counts import Trial
from deployments.upload_forms import UploadForms
from deployments.version_orders import VersionOrders
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, ObjectStore, object_prefix
from engine.errors import InvalidRequest, NotFound, Unavailable

logger = logging.getLogger(__name__)
STATUS_TIMEOUT_S = 3.0
FILES = (CONFIG, TENSORS, MANIFEST)


class Control(Protocol):
    """What needs torch, or one process for all. Raises the errors of `engine.errors`."""

    async def stage(self, order: Order) -> VersionRecord: ...

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

    max_body_bytes  of a JSON body
    """

    catalog: Catalog
    adapters: Adapters
    tenants: Tenants
    control: Control
    replicas: Model
    serving: Serving
    store: ObjectStore
    uploads: UploadForms
    max_body_bytes: int

    @property
    def _orders(self) -> VersionOrders:
        return VersionOrders(self.replicas)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/adapters")
        add = router.add_api_route
        one = "/{tenant}/{name}"
        add("", self.list, methods=["GET"])
        add("", self.publish, methods=["POST"])
        add(one, self.show, methods=["GET"])
        add(one, self.retire, methods=["DELETE"])
        add(one + "/promote", self.promote, methods=["POST"])
        add(one + "/rollback", self.roll_back, methods=["POST"])
        add(one + "/aliases/{alias}", self.remove_alias, methods=["DELETE"])
        add(one + "/versions/{version}", self.retire, methods=["DELETE"])
        add(one + "/versions/{version}/files/{file}", self.download, methods=["GET"])
        return router

    # Showing --------------------------------------------------------------------------------------
    async def list(self, request: Request, tenant: str | None = None, after: str = "") -> Response:
        caller = await self._caller(request)
        if caller.tenant is not None:
            tenant = self._own(caller, tenant)
        limit = page_limit(request.query_params.get("limit"))
        records, has_more = await asyncio.to_thread(self.adapters.page, tenant, after, limit)
        statuses = await self._statuses()
        views = [resident_view(r, statuses) for r in records]
        return page(views, records[-1].model if records else None, has_more)

    async def show(self, request: Request, tenant: str, name: str) -> Response:
        self._scope(await self._caller(request), tenant, name)
        record = await asyncio.to_thread(self.adapters.get, tenant, name)
        view = resident_view(record, await self._statuses())
        return JSONResponse({**view, "trial": await self._trial(record)})

    async def download(
        self, request: Request, tenant: str, name: str, version: str, file: str
    ) -> Response:
        """A stored file of a version: what was published, or its manifest."""
        self._scope(await self._caller(request), tenant, name)
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

    # Publishing -----------------------------------------------------------------------------------
    async def publish(self, request: Request) -> Response:
        """From JSON (a folder or a prefix), or a multipart form with the adapter's files."""
        caller = await self._caller(request)
        if request.headers.get("content-type", "").startswith("multipart/"):
            async with self.uploads.stored(request, lambda b: self._owner(caller, b)) as form:
                return await self._publish(caller, *form)
        body = parse(PublishBody, await read_json(request, self.max_body_bytes))
        if (body.folder is None) == (body.prefix is None):
            raise InvalidRequest(
                "Give one of folder and prefix, or upload the files.", param="folder"
            )
        own = caller.tenant is not None
        return await self._publish(caller, body, Source(body.folder, own, body.prefix))

    async def _publish(self, caller: Caller, body: PublishBody, source: Source) -> Response:
        """Check and store; ask the probes; then the name changes, or nothing does."""
        placing, probes = body.placing(), body.asked()
        order = Order(self._owner(caller, body), body.name, source, caller.hint, body.base)
        version = await self.control.stage(order)
        # Its bytes may have been mended just now, and the probes ask for them.
        await self._orders.retry([version.ref])
        if probes:
            tenant = await asyncio.to_thread(self.tenants.get, order.tenant)
            version = await answered(self.serving, version, tenant.tenant(), probes)
        record = await self.control.register(version, placing)
        digest = version.ref.digest
        logger.info("%s published %s of %s as %s", order.by, digest, record.model, placing.alias)
        return JSONResponse({**adapter_view(record), "version": digest}, status_code=201)

    # Naming and retiring --------------------------------------------------------------------------
    async def promote(self, request: Request, tenant: str, name: str) -> Response:
        caller = self._scope(await self._caller(request), tenant, name)
        body = parse(PromoteBody, await read_json(request, self.max_body_bytes))
        return await self._change(
            f"{caller.hint} promoted {body.version} of {tenant}/{name} as {body.alias}",
            lambda: self.adapters.promote(
                tenant, name, body.version, body.placing(), expect=body.expect
            ),
        )

    async def roll_back(self, request: Request, tenant: str, name: str) -> Response:
        caller = self._scope(await self._caller(request), tenant, name)
        body = parse(RollbackBody, await read_json(request, self.max_body_bytes))
        return await self._change(
            f"{caller.hint} rolled {tenant}/{name}@{body.alias} back",
            lambda: self.adapters.roll_back(
                tenant, name, body.alias, expect=body.expect, why=f"rolled back by {caller.hint}"
            ),
        )

    async def remove_alias(self, request: Request, tenant: str, name: str, alias: str) -> Response:
        caller = self._scope(await self._caller(request), tenant, name)
        return await self._change(
            f"{caller.hint} removed {tenant}/{name}@{alias}",
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
        _only(request, "now")
        now = _flag(request, "now")
        caller = self._scope(await self._caller(request), tenant, name)
        if version is not None and not is_digest(version):
            # Once its version is retired, the name `canary` stands for nothing.
            found = await asyncio.to_thread(self.adapters.get, tenant, name)
            version = found.find(version).ref.digest
        record = await asyncio.to_thread(self.adapters.retire, tenant, name, caller.hint, version)
        logger.info("%s retired %s of %s/%s", caller.hint, version or "all", tenant, name)
        await self.catalog.refresh()
        refs = unused(record, version, self.catalog.adapters(tenant))
        await self._orders.drop(refs, now)
        dead = {v.ref.digest for v in record.tombstones(version)}
        shared = sorted(dead - {ref.digest for ref in refs})
        return JSONResponse({**adapter_view(record), "shared": shared})

    async def _change(self, what: str, change: Callable[[], AdapterRecord]) -> Response:
        record = await asyncio.to_thread(change)
        logger.info("%s: production is %s", what, record.current)
        await self._orders.retry([v.ref for v in record.standing()])
        return JSONResponse(adapter_view(record))

    # Who may --------------------------------------------------------------------------------------
    async def _caller(self, request: Request) -> Caller:
        """Raises Unauthenticated, PermissionDenied."""
        key = bearer_key(request.headers.get("authorization"))
        return (await self.catalog.caller(key)).as_publisher()

    def _scope(self, caller: Caller, tenant: str, name: str) -> Caller:
        """Raises NotFound, as for what isn't there, where the adapter is another tenant's."""
        check_name(tenant, "tenant")
        check_name(name, "name")
        if caller.tenant is not None and caller.tenant.id != tenant:
            raise NotFound(f"There is no adapter {tenant}/{name}.", param="name")
        return caller

    def _own(self, caller: Caller, tenant: str | None) -> str:
        assert caller.tenant is not None
        if tenant not in (None, caller.tenant.id):
            raise NotFound(f"Tenant {str(tenant)[:80]!r} does not exist.", param="tenant")
        return caller.tenant.id

    def _owner(self, caller: Caller, body: PublishBody) -> str:
        """Whose the adapter is to be. Raises NotFound, InvalidRequest."""
        if caller.tenant is not None:
            return self._own(caller, body.tenant)
        if body.tenant is None:
            raise InvalidRequest("tenant: an admin says whose adapter it is.", param="tenant")
        return body.tenant

    async def _trial(self, record: AdapterRecord) -> Mapping[str, Any] | None:
        """What the gate says of the canary that runs, once it has seen some of it."""
        if Trial.of(record) is None:
            return None
        try:
            known = await self.control.trial(record.model)
        except Unavailable:
            return None
        return known

    async def _statuses(self) -> Sequence[Mapping[str, Any]]:
        try:
            return await self.replicas.statuses(STATUS_TIMEOUT_S)
        except Unavailable:
            return []


def _only(request: Request, *known: str) -> None:
    """Raises InvalidRequest for another query parameter, or a body: a misspelt one would retire
    more than was meant."""
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        raise InvalidRequest(
            f"There is no query parameter {unknown[0][:80]!r} here, only {', '.join(known)}. A"
            " version is part of the path: /versions/VERSION.",
            param=unknown[0][:80],
        )
    if request.headers.get("content-length", "0") != "0":
        raise InvalidRequest("A DELETE takes no body. Write ?now=true.")


def _flag(request: Request, name: str) -> bool:
    """Raises InvalidRequest for what is neither true nor false."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} is true or false.", param=name)
    return value == "true"
