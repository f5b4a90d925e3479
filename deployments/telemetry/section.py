"""The configuration's section `telemetry`: its keys, defaults and ranges."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import unquote

from opentelemetry.util.re import parse_env_headers
from pydantic import Field, field_validator

from deployments.config_sections import Seconds, Section

log = logging.getLogger("loraplex.telemetry")


class TelemetrySection(Section):
    """What the service tells of itself; docs/observability.md.

    metrics        False: nothing is counted but what /v1/replicas tells
    ray            metrics go to Ray's Prometheus endpoint of each node
    otlp_endpoint  base URL of an OpenTelemetry collector (OTLP over HTTP): "" is none; where the
                   config doesn't say, OTEL_EXPORTER_OTLP_ENDPOINT
    otlp_headers   of each request to it, over those of OTEL_EXPORTER_OTLP_HEADERS
    resource_attributes  of every process of the service, over those of OTEL_RESOURCE_ATTRIBUTES and
                   OTEL_SERVICE_NAME
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
    otlp_headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    resource_attributes: Mapping[str, str] = Field(default_factory=dict)
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
        turns everything off. Certificates and compression are the exporters' own, of the process
        that they run in."""
        if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return self.model_copy(update={"metrics": False, "traces": False})
        endpoint = self.otlp_endpoint or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        headers = parse_env_headers(environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""), liberal=True)
        completed = {
            "otlp_endpoint": endpoint,
            "otlp_headers": {**headers, **self.otlp_headers},
            "resource_attributes": {**_attributes(environ), **self.resource_attributes},
        }
        return self.model_validate({**self.model_dump(), **completed})


def _attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """Of OpenTelemetry's variables; what is no pair of key and value is left out, as its own
    libraries do: what is told of a service is no reason for it not to start."""
    told: dict[str, str] = {}
    for item in filter(None, environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")):
        key, is_pair, value = item.partition("=")
        if is_pair:
            told[key.strip()] = unquote(value.strip())
        else:
            log.warning("OTEL_RESOURCE_ATTRIBUTES: %r is no key=value and is left out", item)
    if name := environ.get("OTEL_SERVICE_NAME"):
        told["service.name"] = name
    return told
