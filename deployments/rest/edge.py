"""The outermost layer of the REST side: request ids, bodies, errors and clients that go away."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from fastapi import FastAPI, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.rest.answers import error_body
from deployments.rest.strict_json import decode_json
from deployments.telemetry.following import Followed, Follower
from engine.errors import ErrorInfo, InvalidRequest, LoraplexError, TooLarge

T = TypeVar("T")
logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


BODY_TIMEOUT_S = 60.0
"""For a body to arrive whole: one that never does would hold a place that all tenants share."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Edge:
    """ASGI middleware: every answer has an x-request-id (the client's own if it is sane), and an
    error that nobody foresaw is a 500 without its details.

    new_id     makes request ids
    adds_header  False behind a proxy that adds the header itself
    follower   sees each request from its arrival to its end
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        new_id: Callable[[], str],
        adds_header: bool = True,
        follower: Follower | None = None,
    ) -> None:
        self._app = app
        self._new_id = new_id
        self._adds_header = adds_header
        self._follower = follower or Follower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _SANE_ID.fullmatch(given) else self._new_id()
        with self._follower.follow(scope, request_id) as followed:
            await self._answer(scope, receive, send, followed)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, followed: Followed) -> None:
        request_id = followed.request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                followed.status = message["status"]
                if self._adds_header:
                    MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except (ClientGone, ClientDisconnect):
            followed.client_gone()
            logger.info("request %s: the client went away", request_id)
        except Exception:
            logger.exception("request %s failed", request_id)
            if followed.status is None:
                info = ErrorInfo(500, "internal_error", f"Internal error. Request {request_id}.")
                await error_response(info)(scope, receive, send_with_id)


def add_error_handlers(app: FastAPI) -> None:
    """Errors of ours and of the framework leave in the OpenAI API's shape."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, LoraplexError)
        request.state.trace.fail(error.code, error.message)
        to_operator = getattr(request.state, "is_operator", False)
        if error.public is not None and not to_operator:
            logger.warning("request %s: %s", request.state.request_id, error.message)
        return error_response(error.info(), to_operator=to_operator)

    async def frameworks(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            message = f"There is no endpoint {request.method} {request.url.path[:200]}."
        elif error.status_code == 405:
            message = f"{request.url.path[:200]} does not take {request.method}."
        else:
            message = str(error.detail)
        code = {404: "unknown_endpoint", 405: "method_not_allowed"}.get(error.status_code)
        info = ErrorInfo(error.status_code, code or "invalid_request", message)
        return error_response(info, dict(error.headers or {}))

    app.add_exception_handler(LoraplexError, ours)
    app.add_exception_handler(HTTPException, frameworks)


def error_response(
    info: ErrorInfo, headers: dict[str, str] | None = None, *, to_operator: bool = False
) -> JSONResponse:
    """Retry-After in whole seconds, rounded up, where trying again helps. Where it doesn't, clients
    that would try a 503 again by themselves are told not to."""
    headers = dict(headers or {})
    if info.status == 429 or (info.status == 503 and info.retry_after_s is not None):
        headers["Retry-After"] = str(max(1, math.ceil(info.retry_after_s or 1)))
    elif info.status == 503:
        headers["x-should-retry"] = "false"
    if info.status == 413:
        headers["Connection"] = "close"  # what is left of the body is not read
    if info.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error_body(info, to_operator=to_operator)
    return JSONResponse(body, status_code=info.status, headers=headers)


async def read_json(request: Request, max_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> Any:
    """The body, decoded. Raises TooLarge as soon as it is seen to be, InvalidRequest."""
    return decode_json(await read_body(request, max_bytes, timeout_s))


async def read_body(request: Request, max_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
    """Raises TooLarge as soon as it is seen to be, InvalidRequest where it doesn't come."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        _refuse_size(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    _refuse_size(max_bytes)
    except TimeoutError:
        raise InvalidRequest(
            f"The body did not arrive within {timeout_s:g} s.", code="body_timeout"
        ) from None
    return bytes(body)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or ClientGone (and `work` cancelled and ended) on a disconnect."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for t in (task, gone):
            t.cancel()
        for t in (task, gone):
            with suppress(asyncio.CancelledError, Exception):
                await t


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refuse_size(max_bytes: int) -> NoReturn:
    raise TooLarge(f"The body is larger than {max_bytes} bytes. Send less at once.")
