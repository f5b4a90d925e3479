"""A process's traces: where its spans go, and the spans of one client request in the ingress.

Spans are made with explicit parents and, for what the core and the router have noted, explicit
times. A request that isn't sampled, or any where traces are off, makes none: its `RequestTrace` is
one that does nothing (`untraced`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from deployments.telemetry.instrument import Where
from deployments.telemetry.metering import process_resource
from deployments.telemetry.section import TelemetrySection
from engine.types import AdapterRef

EXPORT_TIMEOUT_S = 10.0
COMPARE_S = 10.0
"""Between two comparisons of the clocks: within one, times of a trace are as far apart as noted."""
PARENT = "traceparent"
ROUTE = "route"
W3C = TraceContextTextMapPropagator()


class Tracing:
    """One in each ingress and replica that is to be traced. ratio: of the requests whose client
    says nothing about it, the part that is sampled.

    monotonic  seconds, of the clock that the core, the loader and the router note times by
    """

    def __init__(
        self,
        resource: Resource,
        ratio: float,
        processors: Sequence[SpanProcessor],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._provider = TracerProvider(
            resource=resource, sampler=ParentBased(TraceIdRatioBased(ratio))
        )
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("loraplex")
        self._monotonic = monotonic
        self._wall_ns = wall_ns
        self._offset_ns = 0
        self._compared_s = -math.inf

    def server_span(self, name: str, carrier: Mapping[str, str]) -> Span:
        """A span in this process below the one that `carrier` names by W3C's traceparent; the first
        of a trace where it names none."""
        parent = W3C.extract(carrier)
        return self._tracer.start_span(name, parent, SpanKind.SERVER)

    def child(
        self,
        parent: Span,
        name: str,
        during: tuple[float, float],
        attributes: Mapping[str, Any],
        events: Sequence[tuple[str, float]] = (),
        error: tuple[str, str] | None = None,
    ) -> Span:
        """A span that is over, with what happened in it, and the (code, message) of the error that
        ended it. Times are of the monotonic clock."""
        start_s, end_s = during
        span = self._tracer.start_span(
            name, below(parent), attributes=attributes, start_time=self.ns(start_s)
        )
        for event, at_s in events:
            span.add_event(event, timestamp=self.ns(at_s))
        if error is not None:
            fail(span, *error)
        span.end(self.ns(max(start_s, end_s)))
        return span

    def begin(self, parent: Span, name: str) -> Span:
        """A span that begins now."""
        return self._tracer.start_span(name, below(parent))

    def ns(self, at_s: float) -> int:
        """Unix nanoseconds of a moment of the monotonic clock."""
        now_s = self._monotonic()
        if now_s - self._compared_s >= COMPARE_S:
            self._compared_s = now_s
            self._offset_ns = self._wall_ns() - int(now_s * 1e9)
        return self._offset_ns + int(at_s * 1e9)

    @property
    def now_s(self) -> float:
        return self._monotonic()

    def close(self) -> None:
        """Sends what is left, within 30 s (OpenTelemetry's limit) at the worst; blocks. Idempotent;
        spans that end later are lost."""
        self._provider.shutdown()


def tracing(section: TelemetrySection, where: Where, instance: Callable[[], str]) -> Tracing | None:
    """For the process `instance()` of a deployment; None where traces are off or go nowhere."""
    if not section.traces or not section.otlp_endpoint:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )

    exporter = OTLPSpanExporter(
        endpoint=f"{section.otlp_endpoint.rstrip('/')}/v1/traces",
        headers=dict(section.otlp_headers),
        timeout=EXPORT_TIMEOUT_S,
    )
    batches = BatchSpanProcessor(exporter, schedule_delay_millis=section.export_s * 1e3)
    resource = process_resource(where, instance(), section.resource_attributes)
    return Tracing(resource, section.trace_ratio, [batches])


def below(parent: Span) -> Context:
    return set_span_in_context(parent, Context())


def span_fields(span: Span) -> dict[str, str]:
    """As log lines have them."""
    context = span.get_span_context()
    return {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
    }


def fail(span: Span, code: str, message: str) -> None:
    """It ended with this error."""
    span.set_status(Status(StatusCode.ERROR, message))
    span.set_attribute("error.type", code)


class RequestTrace:
    """The spans of one client request in the ingress, or none; and what its log lines say of it.

    about  fields of the request's log lines
    root   None: not traced
    """

    def __init__(
        self,
        about: dict[str, Any],
        tracing: Tracing | None = None,
        root: Span | None = None,
    ) -> None:
        self.about = about
        self._tracing = tracing
        self._root = root

    @classmethod
    def begin(
        cls,
        tracing: Tracing | None,
        about: dict[str, Any],
        name: str,
        headers: Mapping[str, str],
    ) -> RequestTrace:
        """The trace that the client's traceparent names, or a new one, if it is sampled."""
        if tracing is None:
            return cls(about)
        root = tracing.server_span(name, headers)
        about.update(span_fields(root))
        if not root.is_recording():
            return cls(about)
        root.set_attribute("loraplex.request_id", about["request_id"])
        return cls(about, tracing, root)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What the ingress does now, as a span."""
        if self._tracing is None or self._root is None:
            yield
            return
        span = self._tracing.begin(self._root, name)
        try:
            yield
        finally:
            span.end()

    def identify(self, tenant: str, ref: AdapterRef | None = None) -> None:
        """Whose request it is, and for which version."""
        self.about["tenant"] = tenant
        if ref is not None:
            self.about.update(adapter=ref.ring_key, version=ref.digest)
        if self._root is not None:
            names = ("tenant", "adapter", "version")
            self._root.set_attributes(
                {f"loraplex.{n}": self.about[n] for n in names if n in self.about}
            )

    def used(self, prompt_tokens: int, completion_tokens: int) -> None:
        """The answer is complete."""
        told = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        self.about.update(told)
        if self._root is not None:
            self._root.set_attributes({f"loraplex.{n}": v for n, v in told.items()})

    def event(self, name: str) -> None:
        """Something happened now."""
        if self._root is not None:
            self._root.add_event(name)

    def fail(self, code: str, message: str) -> None:
        self.about["code"] = code
        if self._root is not None:
            fail(self._root, code, message)

    def send(self, call: dict[str, Any]) -> None:
        """Make a call to a replica part of the trace; the router notes in it where it goes."""
        if self._tracing is None or self._root is None:
            return
        W3C.inject(call, below(self._root))
        call[ROUTE] = {"sent_s": self._tracing.now_s}

    def routed(self, call: Mapping[str, Any]) -> None:
        """The call is over, or under way: where it went, and why, as a span."""
        route = call.get(ROUTE)
        if self._tracing is None or self._root is None or route is None or "at_s" not in route:
            return
        told = {f"loraplex.route.{k}": v for k, v in route.items() if k not in ("sent_s", "at_s")}
        self._tracing.child(self._root, "route", (route["sent_s"], route["at_s"]), told)

    def end(self, method: str, route: str, status: int) -> None:
        """The answer has left. route: the endpoint's path with names for what varies, "": there is
        none; status: HTTP's."""
        if self._root is None:
            return
        self._root.update_name(f"{method} {route}".rstrip())
        self._root.set_attributes({"http.request.method": method, "http.route": route})
        self._root.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._root.set_status(Status(StatusCode.ERROR))
        self._root.end()


def untraced(request_id: str = "") -> RequestTrace:
    """One that does nothing."""
    return RequestTrace({"request_id": request_id})
