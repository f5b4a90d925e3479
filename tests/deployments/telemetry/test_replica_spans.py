"""What a replica's spans tell, and to whom they mustn't."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployments.telemetry.replica_spans import ReplicaSpans
from deployments.telemetry.tracing import Tracing
from engine.messages import Output, SequenceOutput
from engine.timeline import Journey, Wait
from engine.types import FinishReason
from tests.support.replicas import adapter, request

SAMPLED = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}


def test_a_trace_names_no_other_tenant_s_versions() -> None:
    kept = InMemorySpanExporter()
    spans = ReplicaSpans(Tracing(Resource({}), 0.0, [SimpleSpanProcessor(kept)]))
    span = spans.begin(SAMPLED, int, {})
    assert span is not None
    spans.submitted(span, [request("r", ref=adapter("bot"))])
    displaced = ("acme/aa", "globex/bb", "acme2/cc", "globex/dd")
    way = Journey(claimed_s=1.0, upload_s=1.5, resident_s=2.0, displaced=displaced)
    waits = (Wait(0.5, 2.0, way),)
    part = SequenceOutput("r", (5,), FinishReason.LENGTH, waits=waits)
    spans.note(Output(sequences=(part,), at_s=3.0))
    span.end()
    told = {span.name: span.attributes for span in kept.get_finished_spans()}
    assert told["adapter"]["loraplex.displaced"] == ("acme/aa",)
    assert told["adapter"]["loraplex.displaced_others"] == 3
    whole = "".join(span.to_json() for span in kept.get_finished_spans())
    assert "globex" not in whole and "acme2" not in whole
