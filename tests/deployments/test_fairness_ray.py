"""Shares and limits on three replicas of a local Ray, on the fake device, through the real router,
registry, control and exchange. What tenants were served is counted from their answers."""

import asyncio
import contextlib
import os
import threading
import time

import httpx
import pytest
import torch
from ray import serve

from deployments.app import build
from deployments.changes.tenants import Tenants
from deployments.registry import open_registry
from engine.model.spec import BackboneSpec
from router.owners import owners
from tests.support.ingress import bearer, write_model
from tests.support.peft_folders import BASE_NAME, lora_tensors, write_adapter
from tests.support.starved import measured

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
SLOTS, ROWS, VNODES = 3, 8, 100
STEP_S = 0.05
PAGE_TOKENS = 256
NUM_PAGES = 40
LOCAL_FLOOR = 0.25
LIMIT_S = 2.0
"""Within so long a changed limit applies, as is promised; it takes 0.2 to 0.4 s."""
WAIT_S = 120.0
PART_TOKENS, NUM_PARTS = 1440, 5
"""What is measured, after as much to settle in: five times three seconds of replicas that wait for
nothing. One answer is 4 % of a tenant's 1800 tokens."""
BACKLOG = 3
"""Requests of four sequences that a tenant keeps at a replica, for each of its rows. A quarter of
them runs at most: what waits is work for ten seconds and more, so that no replica lacks any while
proxy, ingress and this process wait for a processor."""


@pytest.fixture(scope="module")
def service(ray_local, tmp_path_factory):
    """(its url, an operator's client)"""
    home = tmp_path_factory.mktemp("fair")
    write_model(home / "model", num_tokens=8192, context=4096)
    spec = BackboneSpec.load(home / "model")
    torch.manual_seed(0)
    for name in ("one", "two", "three"):
        write_adapter(home / "import" / name, lora_tensors(spec))
    registry = open_registry(f"sqlite://{home}/data/registry.db")
    admin = Tenants(registry, clock=time.time, random_bytes=os.urandom).create_admin_key()
    registry.close()
    values = {
        "data_dir": str(home / "data"),
        "import_root": str(home / "import"),
        "base": {
            "path": str(home / "model"),
            "name": "tiny",
            "revision": "r1",
            "accepts": [BASE_NAME],
        },
        "replica": {
            "num_replicas": SLOTS,
            "device": "fake",
            "dtype": "float32",
            "threads": 1,
            "fake_step_s": STEP_S,
            "max_model_len": 4096,
            "schedule": {"max_seqs": ROWS, "prefix_cache": False},
            "accounts": {"local_floor": LOCAL_FLOOR},
            "memory": {
                "arena_bytes": NUM_PAGES * PAGE_TOKENS * 1024,
                "host_bytes": 8 << 20,
                "page_tokens": PAGE_TOKENS,
            },
            "shutdown_s": 2,
        },
        # Whose adapter belongs to one replica stays there, however busy that is.
        "router": {"stats_period_s": 0.25, "load_factor": 8, "vnodes": VNODES},
    }
    serve.run(build(values), name="fair", route_prefix="/")
    with httpx.Client(base_url=ray_local.url, headers=bearer(admin), timeout=60) as operator:
        yield ray_local.url, operator
    serve.delete("fair")


@pytest.fixture(scope="module")
def operator(service):
    return service[1]


class Customer:
    """A tenant, whose adapters are all replica 0's own unless another is said."""

    def __init__(self, service, tenant, **limits):
        self.url, self._operator = service
        self.tenant = tenant
        answer = self._operator.post("/v1/tenants", json={"id": tenant, **limits})
        self.headers = bearer(answer.raise_for_status().json()["key"])

    def publish(self, folder, slot=0):
        """Its version's record, and the name of an adapter that belongs to that replica."""
        names = (f"{folder}-{number}" for number in range(1000))
        name = next(
            name
            for name in names
            if owners(range(SLOTS), f"{self.tenant}/{name}", 1, VNODES) == (slot,)
        )
        body = {"tenant": self.tenant, "name": name, "folder": folder}
        self._operator.post("/v1/adapters", json=body).raise_for_status()
        view = self._operator.get(f"/v1/adapters/{self.tenant}/{name}").json()
        return f"{self.tenant}/{name}", view["versions"][0]

    def change(self, **limits):
        """When the change was answered."""
        answer = self._operator.patch(f"/v1/tenants/{self.tenant}", json=limits)
        answer.raise_for_status()
        return time.monotonic()


class Asked(threading.Thread):
    """A streamed request of so many tokens each way."""

    def __init__(self, customer, model, num_prompt, max_tokens):
        super().__init__(daemon=True)
        self._customer = customer
        self._body = {
            "model": model,
            "prompt": "a" * num_prompt,
            "max_tokens": max_tokens,
            "stream": True,
        }
        self.begun, self._left = threading.Event(), threading.Event()
        self.begun_s = 0.0
        self.lines = []
        self.start()

    def run(self):
        with (
            httpx.Client(base_url=self._customer.url, timeout=WAIT_S) as client,
            client.stream(
                "POST", "/v1/completions", json=self._body, headers=self._customer.headers
            ) as response,
        ):
            for line in response.iter_lines():
                if line and not self.begun.is_set():
                    self.begun_s = time.monotonic()
                    self.begun.set()
                self.lines.append(line)
                if self._left.is_set():
                    break

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._left.set()
        self.join(WAIT_S)


def test_shares_of_the_whole_service_are_equal_and_the_local_ones_keep_their_floor(service):
    """One tenant on all three replicas, by the base model, and one with an adapter on each: all
    equal. The tenant on three alone would have twice what the others have, were each replica fair
    by itself."""
    crowd = {"max_concurrent": 512, "max_queued": 512}
    spread = Customer(service, "spread", **crowd)
    local = [Customer(service, f"local{slot}", **crowd) for slot in range(SLOTS)]
    models = {"spread": "tiny"} | {
        customer.tenant: customer.publish("one", slot)[0] for slot, customer in enumerate(local)
    }
    for customer in local:  # whose adapters then are where they belong
        with Asked(customer, models[customer.tenant], 8, 2) as asked:
            asked.join(WAIT_S)
    answers = []  # (whose, its output tokens) in the order in which they came

    async def keep_asking(client, customer):
        body = {"model": models[customer.tenant], "prompt": "a" * 8, "max_tokens": 16, "n": 4}
        while True:
            answer = await client.post("/v1/completions", json=body, headers=customer.headers)
            num_tokens = answer.raise_for_status().json()["usage"]["completion_tokens"]
            answers.append((customer.tenant, num_tokens))

    async def load():
        limits = httpx.Limits(max_connections=300, max_keepalive_connections=300)
        async with httpx.AsyncClient(base_url=spread.url, timeout=WAIT_S, limits=limits) as client:
            workers = [*local, *[spread] * SLOTS] * ROWS * BACKLOG
            asking = [asyncio.create_task(keep_asking(client, each)) for each in workers]
            async with asyncio.timeout(2 * WAIT_S):
                while sum(tokens for _, tokens in answers) < (1 + NUM_PARTS) * PART_TOKENS:
                    assert not any(task.done() for task in asking), "each asks for ever"
                    await asyncio.sleep(0.1)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    asyncio.run(load())
    parts = [dict.fromkeys(models, 0) for _ in range(1 + NUM_PARTS)]
    served = 0
    for tenant, num_tokens in answers:
        parts[min(served // PART_TOKENS, NUM_PARTS)][tenant] += num_tokens
        served += num_tokens
    del parts[0]
    # Of a replica it is a third of the whole; its two tenants' shares there are halves.
    floor = LOCAL_FLOOR * PART_TOKENS / SLOTS / 2
    assert all(part[each.tenant] >= floor for part in parts for each in local), parts
    shares = {tenant: sum(part[tenant] for part in parts) for tenant in models}
    mean = sum(shares.values()) / len(shares)
    assert shares == pytest.approx(dict.fromkeys(models, mean), rel=0.1)


def applied(asked, since):
    """A changed limit has let it begin, within the time."""
    assert asked.begun.wait(WAIT_S)
    assert asked.begun_s - since < LIMIT_S


def test_a_raised_weight_takes_rows_for_what_waits(service):
    """All rows are another's but the one that is anybody's. With an equal weight the tenant, which
    has been served less, has a right to half of them, though none of its own ends."""

    def measure(number):
        other = Customer(service, f"weighty{number}")
        light = Customer(service, f"light{number}", weight=0.125)
        theirs, mine = other.publish("one")[0], light.publish("one")[0]
        with contextlib.ExitStack() as streams:
            for row in range(ROWS):
                asked = streams.enter_context(Asked(other, theirs, 8 + row, 400))
                assert asked.begun.wait(WAIT_S)
            assert streams.enter_context(Asked(light, mine, 8, 100)).begun.wait(WAIT_S)
            waits = streams.enter_context(Asked(light, mine, 9, 100))
            assert not waits.begun.wait(1.0)
            applied(waits, light.change(weight=1))

    measured(measure)


def test_a_raised_hard_share_lets_in_what_waits_and_a_lowered_one_ends_what_outgrows_it(service):

    def measure(number):
        tenant = Customer(service, f"bounded{number}", hard_kv_share=2.5 / NUM_PAGES)
        model = tenant.publish("one")[0]
        with Asked(tenant, model, 300, 200) as runs:
            assert runs.begun.wait(WAIT_S)
            with Asked(tenant, model, 301, 200) as waits:
                assert not waits.begun.wait(1.0)
                applied(waits, tenant.change(hard_kv_share=0.5))
        # It needs its second page LIMIT_S after its first token, once the change is known.
        with Asked(tenant, model, PAGE_TOKENS - int(LIMIT_S / STEP_S), 200) as outgrows:
            assert outgrows.begun.wait(WAIT_S)
            tenant.change(hard_kv_share=1.5 / NUM_PAGES)
            outgrows.join(WAIT_S)
            assert any("kv_share_exceeded" in line for line in outgrows.lines)

    measured(measure)


def test_a_lowered_soft_share_gives_back_what_is_borrowed(service):
    """Two tenants hold 16 of 39 pages each, in two requests, and a third waits for eight. All have
    a right to 13, so that neither of the two gives up a request, until one of them borrows."""

    def measure(number):
        borrower, other, third = (
            Customer(service, f"{name}{number}") for name in ("soft", "beside", "third")
        )
        with contextlib.ExitStack() as streams:
            for customer in (borrower, other):
                model = customer.publish("one")[0]
                for _ in range(2):
                    asked = streams.enter_context(Asked(customer, model, 1800, 240))
                    assert asked.begun.wait(WAIT_S)
            waits = streams.enter_context(Asked(third, third.publish("one")[0], 1800, 20))
            assert not waits.begun.wait(1.0)
            applied(waits, borrower.change(soft_kv_share=0.1))

    measured(measure)


def within(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def residency(operator, tier):
    """Of replica 0."""
    (replica,) = [r for r in operator.get("/v1/replicas").json()["data"] if r["slot"] == 0]
    return set(replica["residency"][tier])


@pytest.mark.parametrize("tier", ["device", "host"])
def test_a_lowered_byte_quota_makes_ones_own_adapters_go_first(service, operator, tier):
    """Room for one: a pin, which brings no limits along, is kept at the expense of the tenant's
    other two."""

    def measure(number):
        tenant = Customer(service, f"{tier}-bytes{number}")
        published = [tenant.publish(name) for name in ("one", "two", "three")]
        keys = [f"{tenant.tenant}/{version['digest']}" for _, version in published]
        for model, _ in published[:2]:
            with Asked(tenant, model, 8, 2) as asked:
                asked.join(WAIT_S)
        within(lambda: residency(operator, tier) >= set(keys[:2]))
        num_bytes = 4 * published[0][1]["num_elements"]
        tenant.change(**{f"max_{tier}_bytes": int(1.5 * num_bytes)})
        time.sleep(LIMIT_S)
        model = published[2][0]
        operator.put(f"/v1/adapters/{model}/pin", json={"tier": tier}).raise_for_status()
        within(lambda: keys[2] in residency(operator, tier))
        assert not residency(operator, tier) & set(keys[:2])

    measured(measure)
