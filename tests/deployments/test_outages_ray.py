"""The service on Ray with a real S3 and a real Redis that fail: what a client of HTTP is told.

Resident adapters answer throughout, and everything recovers without a restart.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from ray import serve

from deployments.app import build
from deployments.changes.tenants import Tenants
from deployments.registry import open_registry
from engine.adapters.store import TENSORS
from engine.model.spec import BackboneSpec
from tests.support import fault_proxy, redis_servers, s3_server
from tests.support.fault_proxy import Fault
from tests.support.ingress import bearer, write_model
from tests.support.peft_folders import BASE_NAME, lora_tensors, write_adapter

pytestmark = [pytest.mark.ray, pytest.mark.slow]
AT_ONCE = 200
OUTAGE_S = 12.0
"""Of Redis: longer than any timeout or pause here."""
STORE = {"read_timeout_s": 5, "max_attempts": 3, "max_pause_s": 0.2, "deadline_s": 30}
"""A loader that waits for a processor is not taken for a silent store."""
FAULTS = {
    "slow": (Fault(latency_s=0.1, bytes_per_s=1e6), None),
    "cut": (Fault(cut_after=700, cut_by="rst"), 2),
    "slow down": (Fault(answer=(503, "SlowDown")), None),
    "forbidden": (Fault(answer=(403, "AccessDenied")), None),
    "absent": (Fault(answer=(404, "NoSuchKey")), None),
    "wrong bytes": (Fault(flip=1000), None),
}
"""By name, and for how many requests."""
CODES = {
    "slow down": "store_slow_down",
    "forbidden": "store_forbidden",
    "absent": "object_missing",
    "wrong bytes": "adapter_corrupt",
}
PASSES = {"slow down"}
"""Where trying again helps."""
LATE = {"kept", "after", "late"}
"""Names of the warm one's bytes, published while the registry fails."""


TENANT = {"id": "t1", "max_concurrent": 2 * AT_ONCE, "max_queued": 2 * AT_ONCE}


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    """A master, a replica of it and three Sentinels."""
    folder = tmp_path_factory.mktemp("redis")
    with redis_servers.replicated(folder, "--appendonly", "yes") as servers:
        yield servers


@pytest.fixture(scope="module")
def proxy(s3):
    with fault_proxy.proxy_before(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def service(ray_local, redis, s3, proxy, tmp_path_factory):
    """(a tenant's client, an operator's). Adapters are published and nowhere resident."""
    home = tmp_path_factory.mktemp("outages")
    write_model(home / "model", num_tokens=8192, context=256)
    registry = open_registry(redis.url)
    admin = Tenants(registry, clock=time.time, random_bytes=os.urandom).create_admin_key()
    registry.close()
    values = {
        "data_dir": str(home / "data"),
        "registry": redis.url,
        "store": s3.url(s3_server.new_prefix(), endpoint=proxy.endpoint),
        "store_options": STORE,
        "import_root": str(home / "import"),
        "base": {
            "path": str(home / "model"),
            "name": "tiny",
            "revision": "r1",
            "accepts": [BASE_NAME],
        },
        "replica": {
            "num_replicas": 2,
            "device": "fake",
            "dtype": "float32",
            "threads": 1,
            "fake_step_s": 0.005,
            "memory": {"arena_bytes": 32 << 20, "host_bytes": 8 << 20},
            "shutdown_s": 2,
        },
        "router": {"stats_period_s": 0.25},
    }
    serve.run(build(values), name="outages", route_prefix="/")
    url = ray_local.url
    spec = BackboneSpec.load(home / "model")
    with httpx.Client(base_url=url, headers=bearer(admin), timeout=120) as operator:
        key = operator.post("/v1/tenants", json=TENANT).raise_for_status().json()["key"]
        for name in ("warm", "cold", *(case.replace(" ", "-") for case in FAULTS)):
            write_adapter(home / "import" / name, lora_tensors(spec))
            publish(operator, name).raise_for_status()
        with httpx.Client(
            base_url=url,
            headers=bearer(key),
            timeout=120,
            limits=httpx.Limits(max_connections=2 * AT_ONCE),
        ) as client:
            yield client, operator
    serve.delete("outages")


def ask(client, name, max_tokens=3, **more):
    body = {"model": f"t1/{name}", "prompt": "hello", "max_tokens": max_tokens}
    return client.post("/v1/completions", json=body, **more)


def holders(operator, name):
    """Replicas that have the adapter on their device or in host memory."""
    answer = operator.get(f"/v1/adapters/t1/{name}").raise_for_status()
    return len({place["slot"] for place in answer.json()["replicas"]})


def tensors_gets(proxy):
    return {path: n for path, n in proxy.gets().items() if path.endswith(TENSORS)}


def tells_when(answer):
    """Whether it says when to come back; else it says that clients are not to try by themselves."""
    stays_away = answer.headers.get("x-should-retry") == "false"
    assert ("retry-after" in answer.headers) != stays_away
    return not stays_away


def publish(operator, name):
    body = {"tenant": "t1", "name": name, "folder": "warm" if name in LATE else name}
    return operator.post("/v1/adapters", json=body)


def test_many_at_once_for_one_cold_adapter_get_its_object_once_a_replica(service, proxy):
    """200 requests; the one that came first, and so began the load, goes away."""
    client, operator = service
    before = tensors_gets(proxy)
    proxy.add(Fault(latency_s=1.0), key=TENSORS)  # below the read timeout

    def leave_early():
        with pytest.raises(httpx.ReadTimeout):
            ask(client, "cold", timeout=httpx.Timeout(120, read=0.5))

    first = threading.Thread(target=leave_early)
    first.start()
    time.sleep(0.2)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda _: ask(client, "cold"), range(AT_ONCE)))
    first.join()
    proxy.heal()
    assert {answer.text for answer in answers if answer.status_code != 200} == set()
    after = tensors_gets(proxy)
    (num_gets,) = [n - before.get(path, 0) for path, n in after.items() if n != before.get(path, 0)]
    assert 1 <= num_gets <= 2
    ends = time.monotonic() + 120
    while num_gets > holders(operator, "cold"):  # two on one machine may share their disk
        assert time.monotonic() < ends
        time.sleep(0.1)


@pytest.mark.parametrize("case", FAULTS)
def test_a_store_that_fails_is_told_by_its_cause(service, proxy, case):
    """C-S3-ERRORS, as a client of HTTP sees it; a resident adapter answers meanwhile. Once the
    store is mended, whoever asks has it at once where it was published again."""
    client, operator = service
    name = case.replace(" ", "-")
    assert ask(client, "warm").status_code == 200
    fault, times = FAULTS[case]
    proxy.add(fault, key=TENSORS, times=times)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, client, name)
            warm = [ask(client, "warm").status_code for _ in range(10)]
            answer = waiting.result()
    finally:
        proxy.heal()
    assert set(warm) == {200}
    if case not in CODES:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == CODES[case]
    # Whether it waited for the load, or the load that word sent ahead of it began had failed before
    # it came, is all the same.
    assert tells_when(answer) == (case in PASSES)
    if (early := ask(client, name)).status_code != 200:
        assert early.json()["error"]["code"] == CODES[case]
        assert tells_when(early) == (case in PASSES)
    publish(operator, name).raise_for_status()
    assert ask(client, name).status_code == 200


def published_in_time(client, operator, name, within_s=120):
    """Refused with a 503 of the registry's until it works; resident adapters answer throughout."""
    ends = time.monotonic() + within_s
    while (answer := publish(operator, name)).status_code == 503:
        assert answer.json()["error"]["code"].startswith("registry_"), answer.text
        assert "retry-after" in answer.headers
        assert ask(client, "warm").status_code == 200
        assert time.monotonic() < ends, answer.text
        time.sleep(0.2)
    assert answer.is_success, answer.text


def served_in_time(client, name, within_s=120):
    ends = time.monotonic() + within_s
    while ask(client, name).status_code != 200:
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_a_write_is_answered_once_a_replica_has_it_and_a_failover_loses_none(service, redis):
    client, operator = service
    redis.replica.freeze()
    try:
        unconfirmed = publish(operator, "kept")
    finally:
        redis.replica.thaw()
    assert unconfirmed.status_code == 503
    assert unconfirmed.json()["error"]["code"] == "registry_unconfirmed"
    published_in_time(client, operator, "kept")
    redis.master.kill()
    published_in_time(client, operator, "after")
    redis.wait_for_promotion()
    for name in ("kept", "after"):
        served_in_time(client, name)
        assert operator.get(f"/v1/adapters/t1/{name}").is_success


def test_a_registry_that_is_away_and_comes_back(service, redis):
    """Known names are served, publishing says 503, and nobody is started anew. After a failover, so
    that one server is left."""
    client, operator = service
    redis.master.kill()
    redis.wait_for_promotion()
    assert ask(client, "warm").status_code == 200
    redis.replica.kill()
    try:
        ends = time.monotonic() + OUTAGE_S
        refused = publish(operator, "late")
        assert refused.status_code == 503, refused.text
        assert refused.json()["error"]["code"].startswith("registry_")
        while time.monotonic() < ends:
            assert ask(client, "warm").status_code == 200
            time.sleep(0.5)
        assert ask(client, "never-heard-of").status_code == 503
    finally:
        redis.start_promoted()
    published_in_time(client, operator, "late")
    served_in_time(client, "late")
