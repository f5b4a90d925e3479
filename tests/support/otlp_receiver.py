"""A real receiver of OTLP over HTTP, for tests: keeps the spans and metrics that it is sent."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Received:
    """One span. Times in nanoseconds of Unix time; ids in hex; parent "": none."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: tuple[tuple[str, int], ...]
    is_error: bool


@dataclass
class Receiver:
    """url: the collector's, as `telemetry.otlp_endpoint` takes it. metrics: the latest of each
    name from each process. headers, resources: of each export of spans."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    metrics: dict[tuple[str, str], Any] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)

    def of(self, trace_id: str) -> dict[str, Received]:
        """Those of a trace, by name; the last of each."""
        return {span.name: span for span in self.spans if span.trace_id == trace_id}

    def counted(self, name: str, **labels: str) -> float:
        """A counter's sum over all processes and over all points with these labels."""
        total = 0.0
        for (_, told), metric in list(self.metrics.items()):
            points = metric.sum.data_points if told == name else ()
            total += sum(p.as_double for p in points if labels.items() <= _of(p).items())
        return total

    def wait(self, done: Callable[[], bool], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.02)

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _values(resource.resource.attributes)
            self.resources.append(about)
            service = about["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_received(service, span) for span in scope.spans]

    def take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            process = _values(resource.resource.attributes)["service.instance.id"]
            for scope in resource.scope_metrics:
                self.metrics |= {(process, metric.name): metric for metric in scope.metrics}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                receiver.headers.append({k.lower(): v for k, v in self.headers.items()})
                receiver.take(body)
            if self.path == "/v1/metrics":
                receiver.take_metrics(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield receiver
    server.shutdown()
    server.server_close()
    thread.join()


def _received(service: str, span: Any) -> Received:
    return Received(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        events=tuple((event.name, event.time_unix_nano) for event in span.events),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _of(point: Any) -> dict[str, Any]:
    return _values(point.attributes)


def _values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}
