"""The control deployment answers with records, or with an error as a plain value."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from dataclasses import asdict

import pytest
from opentelemetry.sdk.resources import Resource

from deployments.canary.trial_counts import Trial
from deployments.config import load
from deployments.control.control import Control, max_adapter_bytes
from deployments.control.publish_order import PublishOrder, Source
from deployments.ingress.trials import TRIALS_VERSION
from deployments.registry import open_registry
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import CANARY
from deployments.registry.records import TenantRecord
from deployments.registry.registry import ABSENT
from deployments.telemetry.instruments import CORE_DEATHS, GATE_ROLLBACKS
from deployments.telemetry.logs import about_request, for_request
from deployments.telemetry.metering import Metering
from deployments.telemetry.section import TelemetrySection
from engine.log_lines import JsonLines
from engine.model.spec import BackboneSpec
from tests.support.peft_folders import (
    BASE_NAME,
    lora_tensors,
    peft_config,
    write_adapter,
    write_base,
)
from tests.support.telemetry_points import told


@pytest.fixture
def config(tmp_path):
    write_base(tmp_path / "base")
    (tmp_path / "imports").mkdir()
    config = load(
        {
            "data_dir": str(tmp_path / "data"),
            "base": {"path": str(tmp_path / "base"), "name": BASE_NAME, "accepts": ["alias"]},
            "import_root": str(tmp_path / "imports"),
            "replica": {
                "dtype": "float32",
                "threads": 1,
                "memory": {"arena_bytes": 1 << 20, "host_bytes": 1 << 20},
            },
        },
        environ={},
    )
    registry = open_registry(config.registry_url)
    for tenant in ("acme", "beta"):
        record = TenantRecord(tenant)
        registry.put(record.key, record.to_value(), ABSENT)
    registry.close()
    return config


@pytest.fixture
def control(config):
    control = Control(config, clock=lambda: 50.0)
    yield control
    control.close()


@pytest.fixture
def folder(config):
    spec = BackboneSpec.load(config.base.path)
    write_adapter(config.import_root / "bot", lora_tensors(spec))
    write_adapter(
        config.import_root / "alias",
        lora_tensors(spec),
        peft_config(base_model_name_or_path="alias"),
    )
    return "bot"


async def test_an_adapter_s_life(control, folder):
    answer = await control.publish(tenant="acme", name="bot", folder=folder, by="admin")
    assert json.loads(json.dumps(answer)) == answer
    record = AdapterRecord.from_value(answer)
    assert record.status == "published" and record.ref.name == "bot"
    assert record.versions[0].published_s == 50.0
    swept = await control.sweep()
    assert swept["removed"] == () and swept["unfinished"] == 0


async def test_a_rollback_by_the_gate_is_counted_once(config, folder):
    meter = Metering(TelemetrySection(), Resource({}), [])
    control = Control(config, metering=meter)
    versions = []
    for content, placing in ((folder, {}), ("alias", {"alias": CANARY, "weight": 0.5})):
        order = asdict(PublishOrder("acme", "bot", Source(folder=content), "admin"))
        staged = await control.stage(order)
        versions.append(staged["ref"]["digest"])
        record = AdapterRecord.from_value(await control.register(staged, placing))
    trial = asdict(Trial.of(record))
    assert [trial["production"], trial["canary"]] == versions
    sides = {
        "production": {"answered": 300, "errors": {}, "first": {}, "token": {}},
        "canary": {"answered": 0, "errors": {"not_finite": 300}, "first": {}, "token": {}},
    }
    report = {"v": TRIALS_VERSION, "epoch": "a", "trials": []}
    seen = []
    for trials in ([], [{"trial": trial, "sides": sides}], [{"trial": trial, "sides": sides}]):
        await control.observe({**report, "trials": trials})
        seen.append(told(meter, GATE_ROLLBACKS))
    control.close()
    assert seen == [{(): 0}, {(): 1}, {(): 1}]


async def test_a_core_that_died_is_counted(config, caplog):
    meter = Metering(TelemetrySection(), Resource({}), [])
    control = Control(config, metering=meter)
    seen = [told(meter, CORE_DEATHS)]  # the first one must be an increase
    for _ in range(2):
        assert control.core_died({"replica": "Replica#7"}) == {}
        seen.append(told(meter, CORE_DEATHS))
    control.close()
    assert seen == [{(): 0}, {(): 1}, {(): 2}]
    assert "the core of replica Replica#7 has died" in caplog.text


async def test_lines_of_control_s_threads_are_of_the_request_that_called(config, control):
    registry = open_registry(config.registry_url)
    registry.put("adapter/acme/odd", {"v": 99}, ABSENT)
    registry.close()
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines("control", about_request))
    logger = logging.getLogger("deployments.control")
    logger.addHandler(handler)
    try:
        about = {"request_id": "r-1", "trace_id": "t"}
        await asyncio.create_task(Host(control).sweep(about=about))
        await asyncio.create_task(Host(control).sweep())
    finally:
        logger.removeHandler(handler)
    ids = [json.loads(line).get("request_id") for line in lines.getvalue().splitlines()]
    assert ids == ["r-1", None]


class Host:
    """As the deployment has control."""

    def __init__(self, control):
        self._control = control

    @for_request
    async def sweep(self):
        return await self._control.sweep()


async def test_the_config_s_names_of_the_base_are_accepted(control, folder):
    answer = await control.publish("acme", "bot", "alias", "admin")
    assert answer["versions"][0]["asserted_by"] is None


async def test_the_operator_may_vouch_for_a_key(config, folder):
    spec = BackboneSpec.load(config.base.path)
    newer = peft_config(brand_new={"x": 1})
    write_adapter(config.import_root / "newer", lora_tensors(spec), newer)
    for allowed, key in ((frozenset({"brand_new"}), "versions"), (frozenset(), "error")):
        control = Control(config.model_copy(update={"allowed_adapter_keys": allowed}))
        assert key in await control.publish("acme", "bot", "newer", "admin")
        control.close()


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda c: c.publish("acme", "bot", "../data", "admin"), 400),
        (lambda c: c.publish("acme", "bot", "nothing", "admin"), 404),
        (lambda c: c.publish("nobody", "bot", "bot", "admin"), 404),
        (lambda c: c.publish("acme", "BOT", "bot", "admin"), 400),
        (lambda c: c.publish("acme", "bot", "bot", "admin", base="other"), 400),
    ],
)
async def test_an_error_is_a_plain_value(control, folder, call, status):
    answer = await call(control)
    assert answer["error"]["status"] == status
    assert set(answer["error"]) == {"status", "code", "message", "param", "retry_after_s", "public"}
    json.dumps(answer)


# C-CONTROLLER-BLOCK
async def test_a_bad_adapter_holds_up_no_other(control, config, folder):
    """C-CONTROLLER-BLOCK."""
    spec = BackboneSpec.load(config.base.path)
    write_adapter(config.import_root / "bad", lora_tensors(spec, 8))
    calls = [
        control.publish("acme", name, source, "admin")
        for name, source in (("bad", "bad"), ("good1", "bot"), ("good2", "bot"))
    ]
    bad, *good = await asyncio.gather(*calls)
    assert bad["error"]["status"] == 422
    assert all("production" in answer["aliases"] for answer in good)


def test_room_for_an_adapter_is_the_arena_less_its_reserve_within_host_memory(config):
    engine = config.engine_config()
    spec = BackboneSpec.load(config.base.path)
    page = spec.kv_bytes_per_token(4) * engine.memory.page_tokens
    pages = (1 << 20) // page - 1 - engine.model.max_model_len // engine.memory.page_tokens
    assert max_adapter_bytes(engine, spec, 4) == pages * page < 1 << 20
