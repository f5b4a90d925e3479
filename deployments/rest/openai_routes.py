"""The endpoints that the OpenAI API has too."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from deployments.ingress.auth import Caller, bearer_key
from deployments.ingress.catalog import Catalog
from deployments.ingress.job import Job
from deployments.ingress.serving import Serving
from deployments.rest.answers import error_chunk
from deployments.rest.edge import read_json, until_gone
from deployments.rest.openai_protocol import ChatBody, CompletionBody, parse
from engine.errors import LoraplexError

Body = TypeVar("Body", ChatBody, CompletionBody)
logger = logging.getLogger(__name__)
SESSION = "x-session-id"
"""A request's header: those of one session stay on one side of a canary."""
VERSION = "x-loraplex-adapter-version"
"""An answer's header: the digest of the version that answers."""
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def openai_router(serving: Serving, catalog: Catalog, max_body_bytes: int) -> APIRouter:
    """max_body_bytes: of a request's body."""
    router = APIRouter(prefix="/v1")

    async def caller_of(request: Request) -> Caller:
        with request.state.trace.step("authenticate"):
            return await catalog.caller(bearer_key(request.headers.get("authorization")))

    async def body_of(request: Request) -> Any:
        with request.state.trace.step("receive"):
            return await read_json(request, max_body_bytes)

    async def asked(request: Request, kind: type[Body]) -> tuple[Caller, Body]:
        """Who asks for an answer, and for which."""
        caller = None
        try:
            caller = await caller_of(request)
            return caller, parse(kind, await body_of(request))
        except LoraplexError as error:
            if serving.metrics is not None:
                serving.metrics.refused(None if caller is None else caller.tenant, error)
            raise

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        caller, body = await asked(request, ChatBody)
        return await _answer(request, serving, caller, body)

    @router.post("/completions")
    async def completions(request: Request) -> Response:
        caller, body = await asked(request, CompletionBody)
        return await _answer(request, serving, caller, body)

    @router.get("/models")
    async def models(request: Request) -> Response:
        caller = await caller_of(request)
        return JSONResponse({"object": "list", "data": serving.models(caller)})

    @router.get("/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        caller = await caller_of(request)
        return JSONResponse(await serving.model(name, caller))

    return router


async def _answer(
    request: Request, serving: Serving, caller: Caller, body: ChatBody | CompletionBody
) -> Response:
    request_id, trace = request.state.request_id, request.state.trace

    def begin() -> AbstractAsyncContextManager[Job]:
        session = request.headers.get(SESSION, "")
        return serving.job(request_id, caller, body, session, trace)

    async def whole() -> Response:
        async with begin() as job:
            return JSONResponse(await job.whole(), headers=_version_header(job))

    if not body.stream:
        return await until_gone(request.receive, whole())
    return EventStream(request_id, begin)


def _version_header(job: Job) -> dict[str, str]:
    return {} if job.ref is None else {VERSION: job.ref.digest}


class EventStream(Response):
    """A streamed answer. Until its first tokens are there an error is an ordinary error answer;
    after that it is an event, and the stream ends."""

    def __init__(
        self, request_id: str, begin: Callable[[], AbstractAsyncContextManager[Job]]
    ) -> None:
        super().__init__(media_type="text/event-stream", headers=STREAM_HEADERS)
        del self.headers["content-length"]
        self._request_id = request_id
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_gone(receive, self._respond(send))

    async def _respond(self, send: Send) -> None:
        async with self._begin() as job, aclosing(self._chunks(job)) as chunks:
            first = await anext(chunks)
            self.headers.update(_version_header(job))
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self, job: Job) -> AsyncGenerator[bytes, None]:
        """Never empty. Raises only before its first chunk."""
        begun = False
        try:
            async with aclosing(job.batches()) as batches:
                async for batch in batches:
                    chunk = job.answer.chunks(batch)
                    if job.answer.finished:
                        chunk += job.answer.ending()
                    if chunk:
                        yield chunk
                        begun = True
        except LoraplexError as error:
            if not begun:
                raise
            yield error_chunk(error.info())
        except Exception:
            if not begun:
                raise
            logger.exception("request %s failed", self._request_id)
            yield error_chunk(LoraplexError("Internal error.").info())
