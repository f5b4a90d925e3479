"""Each request to the ingress from its arrival to its end: its trace, its log lines' fields, and
one line of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from deployments.telemetry.logs import begin_request
from deployments.telemetry.tracing import RequestTrace, Tracing
from engine.log_lines import fields

logger = logging.getLogger("loraplex.access")

API = "/v1/"
GONE = 499
"""As the log has it where the client went away before its answer had begun, or ended."""


@dataclass(slots=True)
class Followed:
    """status: HTTP's, once the answer has begun."""

    request_id: str
    trace: RequestTrace
    status: int | None = None

    def client_gone(self) -> None:
        self.status = GONE
        self.trace.event("client_gone")


@dataclass(frozen=True, slots=True)
class Follower:
    """access_log: whether each request has a line. clock: seconds, monotonic."""

    tracing: Tracing | None = None
    access_log: bool = False
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def follow(self, scope: Scope, request_id: str) -> Iterator[Followed]:
        """Puts the request's id and trace into its state. Not thread-safe: one event loop."""
        method, path = scope["method"], scope["path"]
        is_api = path.startswith(API)
        trace = RequestTrace.begin(
            self.tracing if is_api else None,
            begin_request(request_id),
            method,
            Headers(scope=scope),
        )
        scope.setdefault("state", {}).update(request_id=request_id, trace=trace)
        followed, began_s = Followed(request_id, trace), self.clock()
        try:
            yield followed
        except asyncio.CancelledError:
            followed.client_gone()
            raise
        finally:
            status = followed.status or 500
            trace.end(method, getattr(scope.get("route"), "path", ""), status)
            if self.access_log and is_api:
                seconds = round(self.clock() - began_s, 6)
                told = fields(method=method, path=path[:200], status=status, seconds=seconds)
                logger.info("answered", extra=told)
