"""What the endpoints that show or change the registry share: who calls, and what they may send.

Nothing that a caller sends is passed over: a misspelt query key or field is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from deployments.changes.tenants import no_tenant
from deployments.ingress.auth import Caller, bearer_key
from deployments.ingress.catalog import Catalog
from deployments.registry.records import check_name
from deployments.rest.edge import read_body
from deployments.rest.rest_bodies import parse
from deployments.rest.strict_json import decode_json
from engine.errors import InvalidRequest, NotFound

B = TypeVar("B", bound=BaseModel)
Handler = Callable[..., Awaitable[Response]]
MAX_PAGE = 1000
DEFAULT_PAGE = 100


@dataclass(frozen=True, slots=True)
class Desk:
    """Where every call of these endpoints begins. max_body_bytes: of a JSON body."""

    catalog: Catalog
    max_body_bytes: int

    async def admin(self, request: Request) -> Caller:
        """Raises Unauthenticated, PermissionDenied."""
        return (await self.caller(request)).as_admin()

    async def publisher(self, request: Request) -> Caller:
        """An admin, or a tenant that may change its own adapters. Raises Unauthenticated,
        PermissionDenied."""
        return (await self.caller(request)).as_publisher()

    async def owner(self, request: Request, tenant: str, name: str) -> Caller:
        """A publisher who may all with this adapter, whether or not it is there. Raises NotFound
        where it is another tenant's, in the words of `no_adapter`."""
        caller = await self.publisher(request)
        check_name(tenant, "tenant")
        check_name(name, "name")
        if caller.tenant is not None and caller.tenant.id != tenant:
            raise no_adapter(tenant, name)
        return caller

    async def body(self, request: Request, body_type: type[B]) -> B:
        """None at all is an object without fields. Raises InvalidRequest, TooLarge."""
        data = await read_body(request, self.max_body_bytes)
        return parse(body_type, decode_json(data) if data.strip() else {})

    async def caller(self, request: Request) -> Caller:
        """Anybody with a key. Raises Unauthenticated, PermissionDenied."""
        caller = await self.catalog.caller(bearer_key(request.headers.get("authorization")))
        request.state.is_operator = caller.is_operator
        return caller


def own_tenant(caller: Caller, tenant: str | None) -> str | None:
    """Whose things a caller means: a tenant its own, an admin any, None: it doesn't say. Raises
    NotFound for another's."""
    if caller.tenant is None:
        return tenant
    if tenant not in (None, caller.tenant.id):
        raise no_tenant(str(tenant))
    return caller.tenant.id


def no_adapter(tenant: str, name: str) -> NotFound:
    """The same words for what isn't there and what is another tenant's."""
    return NotFound(f"There is no adapter {tenant}/{name}.", param="name")


def add(
    router: APIRouter, method: str, path: str, handler: Handler, query: Sequence[str] = ()
) -> None:
    """query: the keys that the endpoint takes. Only POST, PUT and PATCH take a body."""
    checks = [Depends(_only(tuple(query)))]
    if method in ("GET", "DELETE"):
        checks.append(Depends(_without_body))
    router.add_api_route(path, handler, methods=[method], dependencies=checks)


def flag(request: Request, name: str) -> bool:
    """A query key. Raises InvalidRequest for what is neither true nor false."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} is true or false.", param=name)
    return value == "true"


def page_limit(request: Request) -> int:
    """How many of a list a client wants at once. Raises InvalidRequest."""
    given = request.query_params.get("limit")
    if given is None:
        return DEFAULT_PAGE
    if not re.fullmatch("[0-9]{1,4}", given) or not 1 <= int(given) <= MAX_PAGE:
        raise InvalidRequest(f"limit is a number from 1 to {MAX_PAGE}.", param="limit")
    return int(given)


def page(data: list[dict[str, Any]], last: str | None, has_more: bool) -> JSONResponse:
    """One page of a list. last: what `after` is to be for the next one."""
    return JSONResponse({"object": "list", "data": data, "last": last, "has_more": has_more})


def _only(known: tuple[str, ...]) -> Callable[[Request], None]:
    def check(request: Request) -> None:
        """Raises InvalidRequest for another query key, or one that is there twice."""
        keys = [key for key, _ in request.query_params.multi_items()]
        for key in sorted(set(keys)):
            if key not in known:
                which = f"only {', '.join(known)}" if known else "nor any other"
                raise InvalidRequest(
                    f"There is no query parameter {key[:80]!r} here, {which}.", param=key[:80]
                )
            if keys.count(key) > 1:
                raise InvalidRequest(f"{key} is there twice.", param=key)

    return check


def _without_body(request: Request) -> None:
    headers = request.headers
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise InvalidRequest(
            f"{request.method} takes no body here. Write what it is to do in the path and query."
        )
