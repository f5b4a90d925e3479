"""The configuration's section `telemetry`: its keys, defaults and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, field_validator

from deployments.config_sections import Seconds, Section


class TelemetrySection(Section):
    """What the service tells of itself; docs/observability.md.

    metrics        False: nothing is counted but what /v1/replicas tells
    ray            metrics go to Ray's Prometheus endpoint of each node
    otlp_endpoint  base URL of an OpenTelemetry collector (OTLP over HTTP): "" is none; where the
                   config doesn't say, OTEL_EXPORTER_OTLP_ENDPOINT
    traces, trace_ratio  whether spans go to the collector, and of the requests whose client says
                   nothing about it, the part that is traced; a sampled traceparent is followed
    access_log     a log line for each answer of the API
    export_s       between two exports
    top_tenants, top_adapters  how many have labels of their own, in one process
    rank_s         between two decisions which those are
    """

    metrics: bool = True
    ray: bool = True
    otlp_endpoint: str = ""
    traces: bool = True
    trace_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    access_log: bool = True
    export_s: Seconds = 5
    top_tenants: Annotated[int, Field(ge=1, le=500)] = 20
    top_adapters: Annotated[int, Field(ge=1, le=500)] = 20
    rank_s: Seconds = 60

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError(
                f"must begin with http:// or https:// (OTLP over HTTP, by default port 4318),"
                f" not {url!r}"
            )
        return url

    def completed(self, environ: Mapping[str, str]) -> Self:
        """With what OpenTelemetry's own variables say, where the config doesn't. OTEL_SDK_DISABLED
        turns everything off. The exporters read the others themselves (headers, certificates,
        OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES)."""
        if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return self.model_copy(update={"metrics": False, "traces": False})
        endpoint = self.otlp_endpoint or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        return self.model_validate({**self.model_dump(), "otlp_endpoint": endpoint})
