"""What an ingress counts of requests, its router and its registry, against what the test knows."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import httpx
import pytest
from opentelemetry.sdk.resources import Resource

from deployments.ingress.ingress import _sources
from deployments.registry.records import TenantRecord
from deployments.telemetry import instruments as i
from deployments.telemetry.ingress_metrics import read_router
from deployments.telemetry.instrument import BASE
from deployments.telemetry.metering import Metering
from deployments.telemetry.section import TelemetrySection
from engine.errors import CoreLost, ReplicaLost, Unavailable
from router.counters import RouterCounters
from router.placement import Reason
from tests.support.ingress import HANG, InProcess, announce, bearer, last
from tests.support.memory_control import publish
from tests.support.request_metering_cost import measure
from tests.support.telemetry_points import told
from tests.support.virtual import VirtualClock

TEXT = "/v1/completions"
BOT = "t1/bot@"


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def meter(clock):
    return Metering(TelemetrySection(), Resource({}), [], clock=clock)


@pytest.fixture
async def client(world, meter, clock):
    sources = replace(_sources(), monotonic=clock)
    async with InProcess(world, metering=meter, sources=sources) as client:
        yield client


def body(model="t1/bot", **fields):
    return {"model": model, "prompt": "hi", "max_tokens": 3, **fields}


def timed(clock, first_s, interval_s):
    """Three tokens: the first after `first_s`, the others `interval_s` apart."""

    def script(call):
        clock.sleep(first_s)
        yield [{"i": k, "text": "a", "tokens": 1} for k in range(len(call["requests"]))]
        clock.sleep(2 * interval_s)
        yield [{**last(k, "bc", completion=3), "tokens": 2} for k in range(len(call["requests"]))]

    return script


async def test_times_and_tokens_of_a_tenant_and_an_adapter(client, world, meter, clock):
    world.model.script = timed(clock, 0.3, 0.02)
    for stream in (False, True):
        assert (await client.post(TEXT, json=body(stream=stream))).status_code == 200
    world.model.script = timed(clock, 2.0, 0.02)
    both = await client.post(TEXT, json=body("org/tiny", n=2, prompt=["hi", "ho"]))
    assert both.status_code == 200
    (adapter,) = {a for _, a, *_ in told(meter, i.REQUESTS)} - {BASE}
    assert adapter.startswith(BOT) and len(adapter) == len(BOT) + 12
    assert told(meter, i.REQUESTS) == {
        ("t1", adapter, "200", "ok"): 2,
        ("t1", BASE, "200", "ok"): 1,
    }
    assert told(meter, i.TENANT_FIRST_TOKEN) == {("t1",): (3, pytest.approx(2.6))}
    assert told(meter, i.ADAPTER_FIRST_TOKEN) == {
        (adapter,): (2, pytest.approx(0.6)),
        (BASE,): (1, pytest.approx(2.0)),
    }
    assert told(meter, i.TOKEN_INTERVAL) == {(): (6, pytest.approx(6 * 0.02))}
    assert told(meter, i.REQUEST_DURATION) == {("200",): (3, pytest.approx(2.6 + 3 * 0.04))}
    # A prompt of 2 tokens each; of the base's four sequences two share a prompt.
    assert told(meter, i.TOKENS) == {
        ("t1", adapter, "prompt"): 4,
        ("t1", adapter, "cached"): 0,
        ("t1", adapter, "completion"): 6,
        ("t1", BASE, "prompt"): 4,
        ("t1", BASE, "cached"): 0,
        ("t1", BASE, "completion"): 12,
    }
    assert told(meter, i.REQUESTS_ACTIVE) == {(): 0}


async def test_ends_by_status_and_code(client, world, meter, clock):
    lost_once = [[ReplicaLost("lost")], [[last(0, "fine")]]]
    scripts = [
        *lost_once,
        [CoreLost("gone")],
        [[{"i": 0, "text": "a", "tokens": 1}], CoreLost("in the midst")],
        [Unavailable("none")],
    ]
    world.model.script = lambda call: scripts.pop(0)
    answers = [
        await client.post(TEXT, json=body()),
        await client.post(TEXT, json=body()),
        await client.post(TEXT, json=body(stream=True)),
        await client.post(TEXT, json=body()),
        await client.post(TEXT, json=body("t1/nobody")),
        await client.post(TEXT, json=body(prompt=["x"] * 200)),
    ]
    assert [answer.status_code for answer in answers] == [200, 503, 200, 503, 404, 400]
    ends = Counter()
    for (tenant, _, status, code), num in told(meter, i.REQUESTS).items():
        assert tenant == "t1"
        ends[status, code] += num
    assert ends == {
        ("200", "ok"): 1,
        ("503", "core_lost"): 2,
        ("503", "unavailable"): 1,
        ("404", "model_not_found"): 1,
        ("400", "invalid_request"): 1,
    }
    assert told(meter, i.LOSSES) == {("core_lost",): 2, ("replica_lost",): 1}


async def test_requests_that_end_before_it_is_known_for_what_they_are(client, meter):
    nobody = {"headers": bearer("lp-unknown")}
    answers = [
        await client.post(TEXT, json=body(), **nobody),
        await client.post("/v1/chat/completions", json={}, **nobody),
        await client.post(TEXT, json={"model": 3}),
        await client.get("/v1/models", **nobody),
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 400, 401]
    codes = [answer.json()["error"]["code"] for answer in answers]
    ends = {(tenant, *end): n for (tenant, _, *end), n in told(meter, i.REQUESTS).items()}
    assert ends == {("", "401", codes[0]): 2, ("t1", "400", codes[2]): 1}


async def test_a_client_that_goes_away_and_one_that_is_not_let_in(world, meter, clock):
    world.tenants.create(TenantRecord("small", max_concurrent=1))
    publish(world.registry, "small", "bot")
    key = world.tenants.rotate_key("small")
    world.model.script = lambda call: [HANG]
    called = announce(world.model)
    async with InProcess(world, metering=meter) as client:
        mine = {"headers": bearer(key if isinstance(key, str) else key[1])}
        asking = asyncio.create_task(client.post(TEXT, json=body("bot"), **mine))
        await called.wait()
        assert told(meter, i.REQUESTS_ACTIVE) == {(): 1}
        refused = await client.post(TEXT, json=body("bot"), **mine)
        assert refused.status_code == 429
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    code = refused.json()["error"]["code"]
    assert told(meter, i.REFUSALS) == {("small", code): 1}
    ends = {(status, code): n for (*_, status, code), n in told(meter, i.REQUESTS).items()}
    assert ends == {("429", code): 1, ("499", "client_gone"): 1}
    assert told(meter, i.REQUESTS_ACTIVE) == {(): 0}


async def test_the_least_popular_tenants_are_pooled(world, meter, clock):
    """Twelve tenants; by the first ranking the least tenth are the two that came once."""
    names = [f"p{k:02}" for k in range(12)]
    keys = {name: world.tenants.create(TenantRecord(name))[1] for name in names}
    sources = replace(_sources(), monotonic=clock)
    async with InProcess(world, metering=meter, sources=sources) as client:

        async def ask(name: str, first_s: float) -> None:
            world.model.script = timed(clock, first_s, 0.01)
            answer = await client.post(TEXT, json=body("org/tiny"), headers=bearer(keys[name]))
            assert answer.status_code == 200

        for k, name in enumerate(names):
            for _ in range(max(1, k)):
                await ask(name, 0.1)
        clock.sleep(61)
        meter.read()  # ranks
        before = told(meter, i.POPULARITY_FIRST_TOKEN)
        assert set(before) == {("rest",)}
        for name in names:
            await ask(name, 4.0 if name in ("p00", "p01") else 0.1)
    after = told(meter, i.POPULARITY_FIRST_TOKEN)
    assert after[("bottom_decile",)] == (2, pytest.approx(8.0))
    assert after[("rest",)][0] - before[("rest",)][0] == 10


def test_the_router_s_counters_are_told_by_reason(meter):
    counters = RouterCounters(Counter({Reason.OWNER: 7, Reason.SPILL: 2}), 3, 1, 12, 0.5)
    known = [None]
    read_router(meter, lambda: known[0])
    assert told(meter, i.PLACEMENTS) == {}
    known[0] = counters
    reasons = {reason: value for (reason,), value in told(meter, i.PLACEMENTS).items()}
    assert reasons.pop("owner") == 7 and reasons.pop("spill") == 2
    assert set(reasons) == {"resident", "least_loaded", "base", "full"}
    assert not any(reasons.values())
    values = [told(meter, x)[()] for x in (i.ROUTER_WAITS, i.ROUTER_HINTS, i.PICKS, i.PICK_TIME)]
    assert values == [3, 1, 12, 0.5]


async def test_the_registry_s_age_and_failures(client, world, meter, clock):
    """The copy is asked for every quarter of a second, whatever our clock says."""
    assert told(meter, i.REGISTRY_AGE) == {(): 0.0} and told(meter, i.REGISTRY_ERRORS) == {(): 0}
    world.registry.close()
    clock.sleep(40)
    async with asyncio.timeout(60):
        while not told(meter, i.REGISTRY_ERRORS)[()]:
            await asyncio.sleep(0.05)
    assert told(meter, i.REGISTRY_AGE) == {(): 40.0}


async def test_where_metrics_are_off_requests_are_answered_all_the_same(world):
    async with InProcess(world) as client:
        answer = await client.post(TEXT, json=body())
    assert isinstance(answer, httpx.Response) and answer.status_code == 200


def test_counting_a_request_costs_an_ingress_little_and_labels_stay_few():
    """Of the milliseconds that a request takes it; bounds are five times what was measured."""
    cost = measure(3000)
    assert cost["request_us"] < 100 and cost["read_ms"] < 15 and cost["rank_ms"] < 50
    assert 20 < cost["num_series"] < 600
