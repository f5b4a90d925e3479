"""Traces by a real receiver: ingress and replica without Ray, the replica with its processes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deployments.replica.replica import Replica
from deployments.rest.answers import Event
from deployments.telemetry.instrument import Where
from deployments.telemetry.section import TelemetrySection
from deployments.telemetry.tracing import tracing
from tests.support.ingress import InProcess, ScriptedModel, World, error_of
from tests.support.memory_control import REVISION
from tests.support.otlp_receiver import Received, Receiver, receiving
from tests.support.replicas import LOADER, adapter, call, engine_config, replica_config, request

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
HELLO = {"model": "bot", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def section(receiver: Receiver, **changes: Any) -> TelemetrySection:
    known = {"otlp_endpoint": receiver.url, "export_s": 0.05, "trace_ratio": 0.0, "ray": False}
    return TelemetrySection(**{**known, **changes})


def check_nested(spans: Mapping[str, Received]) -> None:
    """Every span but the one of the client's call has its parent in the trace, and ends after it
    begins."""
    ids = {span.span_id for span in spans.values()}
    for span in spans.values():
        assert span.parent in ids | {CALLER}, span.name
        assert span.start_ns <= span.end_ns, span.name


class ReplicaModel(ScriptedModel):
    """The ingress's replicas: one of ours in this process, placed as a router would."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self._replica = replica

    def generate(self, call: Any, *, ring_key: str, adapter_key: str) -> Any:
        if "route" in call:
            call["route"].update(at_s=asyncio.get_running_loop().time(), reason="owner")
        return ReplicaStream(self._replica.generate(call))


class ReplicaStream:
    def __init__(self, events: AsyncIterator[list[Event]]) -> None:
        self._events = events

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self._events

    def cancel(self) -> None:
        """The stream is read to its end."""


async def test_one_trace_from_the_client_to_the_last_decode_step_of_a_cold_request(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Nothing is exported before the orderly end of both, which sends all."""
    telemetry = section(
        receiver, export_s=3600, otlp_headers={"x-token": "t"}, resource_attributes={"zone": "b"}
    )
    config = replica_config(tmp_path, engine_config(tmp_path), telemetry=telemetry)
    config = dataclasses.replace(config, base_revision=REVISION)
    world = World.build(tmp_path)
    traces = tracing(telemetry, Where.INGRESS, lambda: "i")
    replica = Replica(config, slot=lambda: 3, leave=int, loader=LOADER)
    world.model = ReplicaModel(replica)
    try:
        async with InProcess(world, tracing=traces) as client:
            answer = await client.post("/v1/chat/completions", json=HELLO, headers=SAMPLED)
            assert answer.status_code == 200, answer.text
            unsampled = {"traceparent": f"00-{'1' * 32}-{CALLER}-00"}
            await client.post("/v1/chat/completions", json=HELLO, headers=unsampled)
    finally:
        replica.shutdown()
        world.registry.close()
    assert len(receiver.of(TRACE)) >= 15
    assert all(headers["x-token"] == "t" for headers in receiver.headers)
    assert all(resource["zone"] == "b" for resource in receiver.resources)
    assert {span.trace_id for span in receiver.spans} == {TRACE}
    spans = receiver.of(TRACE)
    check_nested(spans)
    root = spans["POST /v1/chat/completions"]
    assert root.parent == CALLER and root.service == "loraplex-ingress"
    assert root.attributes["loraplex.request_id"] == answer.headers["x-request-id"]
    assert root.attributes["loraplex.adapter"] == "t1/bot"
    assert [name for name, _ in root.events] == ["admitted", "first_token"]
    for name in ("authenticate", "receive", "resolve", "template", "tokenise", "route", "replica"):
        assert spans[name].parent == root.span_id, name
    assert spans["route"].attributes["loraplex.route.reason"] == "owner"
    for name in ("queue", "prefill", "decode"):
        assert spans[name].parent == spans["replica"].span_id, name
        assert spans[name].service == "loraplex-replica"
    assert spans["replica"].attributes["loraplex.slot"] == 3
    assert spans["adapter"].parent == spans["queue"].span_id
    assert spans["adapter"].attributes["loraplex.from"] == "store"
    for name in ("adapter.verify", "adapter.upload"):
        assert spans[name].parent == spans["adapter"].span_id
    decode = spans["decode"]
    assert decode.attributes["loraplex.steps"] == 4
    assert decode.events == (("first_token", decode.start_ns),)
    # One after the other, and the queue until the adapter was there.
    assert spans["queue"].end_ns <= spans["prefill"].end_ns <= decode.end_ns <= root.end_ns
    assert spans["adapter.upload"].end_ns == spans["adapter"].end_ns <= spans["queue"].end_ns


async def test_a_refused_request_s_trace_says_why(tmp_path: Path, receiver: Receiver) -> None:
    world = World.build(tmp_path)
    traces = tracing(section(receiver), Where.INGRESS, lambda: "i")
    async with InProcess(world, tracing=traces) as client:
        body = {**HELLO, "model": "t2/none"}
        answer = await client.post("/v1/chat/completions", json=body, headers=SAMPLED)
        assert error_of(answer, 404)["code"] == "model_not_found"
        assert (await client.get("/health", headers=SAMPLED)).status_code == 200
    world.registry.close()
    spans = receiver.of(TRACE)
    root = spans.pop("POST /v1/chat/completions")
    assert root.is_error and root.attributes["error.type"] == "model_not_found"
    assert root.attributes["http.response.status_code"] == 404
    assert set(spans) == {"authenticate", "receive", "resolve"}


async def collect(replica: Replica, body: dict[str, Any]) -> list[Event]:
    return [event async for events in replica.generate(body) for event in events]


async def test_requests_that_wait_for_one_load_have_it_in_each_of_their_traces(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Also one that gives up before the adapter comes."""
    config = replica_config(tmp_path, engine_config(tmp_path), telemetry=section(receiver))
    replica = Replica(config, slot=int, leave=int, loader=LOADER)
    gate = tmp_path / "gate"
    ref = adapter("held", uri=str(gate))

    def traced(number: int, **changes: Any) -> dict[str, Any]:
        parent = f"00-{number:032x}-{CALLER}-01"
        return {**call(request(f"r{number}", ref=ref), **changes), "traceparent": parent}

    try:
        await replica.start()
        waiting = [asyncio.create_task(collect(replica, traced(n))) for n in (1, 2)]
        late = await collect(replica, traced(3, deadline_s=1.0))
        assert late[-1]["error"]["code"] == "timeout"
        gate.touch()
        await asyncio.gather(*waiting)
        await asyncio.to_thread(
            receiver.wait,
            lambda: all("decode" in receiver.of(f"{n:032x}") for n in (1, 2)),
        )
    finally:
        replica.shutdown()
    ways = [receiver.of(f"{n:032x}")["adapter"] for n in (1, 2, 3)]
    assert {way.attributes["loraplex.load_id"] for way in ways} == {0}
    assert {way.attributes["loraplex.version"] for way in ways} == {ref.digest}
    whole = ways[:2]
    assert len({way.end_ns // 10**6 for way in whole}) <= 2  # the same moment
    given_up = receiver.of(f"{3:032x}")
    assert "adapter.upload" not in given_up and "decode" not in given_up
    assert ways[2].end_ns < whole[0].end_ns


def test_off_where_nobody_is_to_be_told(receiver: Receiver) -> None:
    for changes in ({"otlp_endpoint": ""}, {"traces": False}):
        assert tracing(section(receiver, **changes), Where.INGRESS, lambda: "i") is None
    disabled = section(receiver).completed({"OTEL_SDK_DISABLED": "true"})
    assert tracing(disabled, Where.INGRESS, lambda: "i") is None


def test_the_ratio_is_of_requests_whose_client_says_nothing(receiver: Receiver) -> None:
    for ratio, headers, sampled in ((0.0, {}, 0), (1.0, {}, 20), (0.0, SAMPLED, 20)):
        traces = tracing(section(receiver, trace_ratio=ratio), Where.INGRESS, lambda: "i")
        assert traces is not None
        spans = [traces.server_span("s", headers) for _ in range(20)]
        assert sum(span.is_recording() for span in spans) == sampled
        traces.close()
