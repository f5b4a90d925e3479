"""The series of a process in OpenTelemetry's data model, and what exporters make of them."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource

from deployments.telemetry import instruments as i
from deployments.telemetry.instrument import OTHER, Kind, Where
from deployments.telemetry.metering import Metering, metering, process_resource
from deployments.telemetry.ray_endpoint import histogram_parts
from deployments.telemetry.section import TelemetrySection
from deployments.telemetry.tally import Tally
from engine.histogram import Counts, Histogram
from tests.support.virtual import VirtualClock


class Kept(MetricExporter):
    """Keeps what it was given."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.data = []

    def export(self, metrics_data, timeout_millis=10_000, **kwargs):
        if self.fails:
            raise OSError("nobody there")
        self.data.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **kwargs):
        self.data = None


def test_names_units_and_kinds_are_sound():
    names = [instrument.prometheus for instrument in i.ALL]
    assert len(set(names)) == len(names) > 40
    for instrument in i.ALL:
        assert instrument.name.startswith("loraplex.") and instrument.help.endswith(".")
        assert (instrument.kind is Kind.HISTOGRAM) == bool(instrument.bounds)
        assert list(instrument.bounds) == sorted(set(instrument.bounds))
    assert i.REQUESTS.prometheus == "loraplex_requests_total"
    assert i.TENANT_FIRST_TOKEN.prometheus == "loraplex_tenant_first_token_seconds"
    assert i.ARENA.prometheus == "loraplex_arena_size_bytes"
    assert i.STEP_BUSY.prometheus == "loraplex_step_busy_seconds_total"


def test_histograms_count_alike_wherever_they_are_filled():
    values = [0.0, 0.005, 0.0051, 1.0, 59.0, 60.0, 61.0, 1e9]
    tally, counted = Tally(lambda: 7), Histogram(i.STALLS.bounds)
    for value in values:
        tally.observe(i.TENANT_QUEUE, value, "t")
        counted.add(value)
    tally.set_counts(i.STALLS, counted.read())
    points = {m.name: m.data.data_points[0] for m in tally.read()}
    ours, theirs = points[i.TENANT_QUEUE.name], points[i.STALLS.name]
    assert ours.bucket_counts == theirs.bucket_counts
    assert ours.count == 8 and ours.sum == theirs.sum == sum(values)
    for k, bound in enumerate(ours.explicit_bounds):  # an independent count
        assert sum(ours.bucket_counts[: k + 1]) == sum(value <= bound for value in values)
    parts = [(part, tags.get("le"), value) for part, value, tags in histogram_parts(ours)]
    assert parts[0] == ("bucket", "0.005", 2) and parts[-3] == ("bucket", "+Inf", 8)
    assert parts[-2:] == [("sum", None, sum(values)), ("count", None, 8)]


def test_what_is_read_is_what_otlp_carries():
    tally = Tally(lambda: 1_000)
    tally.add(i.REQUESTS, 2, "t", "base", "200", "ok")
    tally.set(i.QUEUE_WAIT, 0.5)
    tally.set_counts(i.STEP_ADAPTERS, Counts((0, 3, *[0] * 13), 3.0))
    meter = Metering(TelemetrySection(), Resource({"service.name": "x"}), [])
    meter.tally = tally
    (resource,) = encode_metrics(meter.read()).resource_metrics
    told = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    requests = told["loraplex.requests"]
    assert requests.sum.is_monotonic and requests.sum.aggregation_temporality == 2
    assert requests.sum.data_points[0].as_double == 2
    assert {a.key: a.value.string_value for a in requests.sum.data_points[0].attributes} == {
        "tenant": "t",
        "adapter": "base",
        "status": "200",
        "code": "ok",
    }
    assert told["loraplex.queue.wait"].gauge.data_points[0].as_double == 0.5
    point = told["loraplex.step.adapters"].histogram.data_points[0]
    assert list(point.bucket_counts)[:3] == [0, 3, 0] and point.count == 3
    assert list(point.explicit_bounds) == list(i.STEP_ADAPTERS.bounds)
    assert not point.HasField("min") and not point.HasField("max")


async def test_an_exporter_that_fails_holds_up_no_other_and_readers_come_first(caplog):
    good, bad, clock = Kept(), Kept(fails=True), VirtualClock()
    meter = Metering(TelemetrySection(), Resource({}), [bad, good], clock=clock)
    meter.readers += [lambda: meter.tally.set(i.QUEUE_WAIT, clock()), lambda: 1 / 0]
    clock.sleep(3)
    await meter.export()
    assert "nobody there" in caplog.text and "division" in caplog.text
    metrics = good.data[0].resource_metrics[0].scope_metrics[0].metrics
    assert [(m.name, m.data.data_points[0].value) for m in metrics] == [(i.QUEUE_WAIT.name, 3.0)]
    meter.close()


async def test_it_exports_again_and_again_and_ranks_by_the_clock():
    kept, clock = Kept(), VirtualClock()
    section = TelemetrySection(export_s=0.01, top_tenants=1, rank_s=60)
    meter = Metering(section, Resource({}), [kept], clock=clock)
    for tenant in ("a", "b", "b", "b"):
        meter.tally.observe(i.TENANT_QUEUE, 1.0, meter.tenants.see(tenant))
    running = asyncio.create_task(meter.run())
    while len(kept.data) < 2:
        await asyncio.sleep(0.005)
    assert meter.tenants.label("b") == OTHER
    clock.sleep(60)
    while meter.tenants.label("b") == OTHER:
        await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    meter.close()


def test_where_metrics_are_off_there_is_nothing():
    off = TelemetrySection(metrics=False)
    nowhere = TelemetrySection(ray=False)
    for section in (off, nowhere):
        assert metering(section, Where.REPLICA, lambda: "r1") is None
    otlp = TelemetrySection(ray=False, otlp_endpoint="http://127.0.0.1:9")
    meter = metering(otlp, Where.REPLICA, lambda: "r1")
    assert meter is not None
    meter.close()


def test_a_process_is_described_by_the_configuration_and_not_by_its_environment(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=elsewhere")
    plain = process_resource(Where.REPLICA, "r1", {}).attributes
    assert plain["service.name"] == "loraplex-replica" and plain["service.instance.id"] == "r1"
    assert plain["telemetry.sdk.language"] == "python"
    assert "deployment.environment.name" not in plain
    said = process_resource(Where.REPLICA, "r1", {"service.name": "chat", "zone": "b"})
    assert said.attributes["service.name"] == "chat" and said.attributes["zone"] == "b"
