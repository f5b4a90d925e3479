"""The canary gate from request to rollback: two ingresses, their counts, the record's history."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import asdict

import pytest

from deployments.canary.gate import GateSection
from deployments.canary.trial_counts import Trial
from deployments.changes.adapters import Adapters
from deployments.changes.placing import Placing
from deployments.command_line.canary_lines import canary_lines
from deployments.control.gatekeeper import Gatekeeper
from deployments.ingress.trials import failure
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord
from engine.errors import (
    AdapterRejected,
    AdapterUnavailable,
    CoreLost,
    InvalidRequest,
    LoraplexError,
    NotFound,
    ReplicaLost,
    RequestTimeout,
    TooManyRequests,
    Unavailable,
)
from tests.support.contended import Contended
from tests.support.ingress import InProcess, World, bearer, echo
from tests.support.memory_control import put_version

GATE = {"min_requests": 20, "report_s": 0.02, "warm_up_s": 0.0}
TWO = "/v1/adapters/t1/two"
NUMBERS = itertools.count()
GOOD = {"answered": 50, "errors": {}, "first": {}, "token": {}}
BAD = {**GOOD, "answered": 0, "errors": {"not_finite": 50}}
EVEN = {"canary": GOOD, "production": GOOD}
WORSE = {"canary": BAD, "production": GOOD}


def report(trial, sides, epoch="a"):
    """What an ingress tells of a trial."""
    return {"v": 1, "epoch": epoch, "trials": [{"trial": asdict(trial), "sides": sides}]}


@pytest.fixture
def world(tmp_path):
    return World.build(tmp_path, gate=GATE)


@pytest.fixture
def versions(world):
    """t1/two has two versions, the first in production."""
    record = AdapterRecord("t1", "two")
    found = [put_version(world.store, "t1", "two", m) for m in (b"one", b"two")]
    for version in found:
        record = record.with_version(version)
    record = record.promoted(found[0].ref.digest)
    world.registry.put(record.key, record.to_value(), None)
    return [v.ref.digest for v in found]


@pytest.fixture
async def clients(world, versions):
    """Of two ingresses, as an admin."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(InProcess(world)) for _ in range(2)]


def failing(digest, error):
    """Replicas that answer `error` for one version."""

    def script(call):
        ref = call["requests"][0]["adapter"]
        if ref is not None and ref["digest"] == digest:
            yield error
        else:
            yield from echo(call)

    return script


async def admin(client, world, method, path, **body):
    answer = await client.request(
        method, path, headers=bearer(world.keys["admin"]), json=body or None
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def canary(clients, world, digest, **fields):
    await name(clients[0], world, digest, "canary", **fields)
    await told(clients, world, digest)


async def name(client, world, digest, alias, **fields):
    await admin(client, world, "POST", f"{TWO}/promote", version=digest, **{"as": alias}, **fields)


async def told(clients, world, digest):
    """Until every ingress knows what was changed: it then knows an alias that was made after."""
    alias = f"mark-{next(NUMBERS)}"
    await name(clients[0], world, digest, alias)
    for client in clients:
        async with asyncio.timeout(60):
            while await status(client, f"t1/two@{alias}") == 404:
                await asyncio.sleep(0.02)


async def status(client, model):
    answer = await client.post("/v1/completions", json={"model": model, "prompt": "x"})
    return answer.status_code


async def ask(clients, model="t1/two", num=120):
    """How many of so many requests, spread over the ingresses, were answered."""
    answers = [await status(clients[i % 2], model) for i in range(num)]
    return answers.count(200)


async def shown(client, world, until):
    async with asyncio.timeout(60):
        while not until(found := await admin(client, world, "GET", TWO)):
            await asyncio.sleep(0.05)
    return found


async def test_a_failing_canary_is_rolled_back_and_says_why(world, versions, clients):
    first, second = versions
    error = AdapterRejected("On replica-3: s3://private/t9.", code="adapter_quarantined")
    world.model.script = failing(second, error)
    await canary(clients, world, second, weight=0.5)
    assert 20 <= await ask(clients) <= 100
    found = await shown(clients[1], world, lambda f: f["aliases"]["production"]["ended"])
    alias = found["aliases"]["production"]
    assert (alias["digest"], alias["canary"], found["trial"]) == (first, None, None)
    (ended,) = alias["ended"]
    assert (ended["digest"], ended["at_s"]) == (second, 9.0)
    assert ended["why"].startswith("canary gate: ")
    assert "adapter_quarantined" in ended["why"] and "2.0% are allowed" in ended["why"]
    assert "replica-3" not in str(found) and "private" not in str(found), "a tenant reads it too"
    assert any(ended["why"] in line for line in canary_lines(found))
    await told(clients, world, first)
    assert await ask(clients, num=20) == 20
    # The same version again is another trial: what was counted of the first is no reason.
    world.model.script = echo
    await canary(clients, world, second, weight=0.5)
    assert await ask(clients) == 120
    found = await shown(clients[0], world, lambda f: (f["trial"] or {}).get("state") == "holding")
    assert found["aliases"]["production"]["canary"] == second
    assert len(found["aliases"]["production"]["ended"]) == 1


async def test_the_verdict_is_seen_while_it_runs(world, versions, clients):
    await canary(clients, world, versions[1], weight=0.5)
    assert await ask(clients, num=10) == 10
    found = await shown(clients[0], world, lambda f: f["trial"])
    assert found["trial"]["state"] == "waiting" and "of at least 20" in found["trial"]["why"]
    assert await ask(clients, num=110) == 110

    def whole(f):
        return f["trial"]["canary"]["requests"] + f["trial"]["production"]["requests"] == 120

    trial = (await shown(clients[0], world, whole))["trial"]
    assert set(trial) == {"model", "number", "state", "why", "canary", "production"}
    assert trial["state"] == "holding" and trial["canary"]["failed"] == 0
    assert trial["production"]["quantiles"] == [0.5, 0.9]
    middle, late = trial["production"]["first_s"]
    assert 0 < middle <= late < 5
    lines = canary_lines(await admin(clients[0], world, "GET", TWO))
    assert "gate holding" in lines[0] and "first text p90" in lines[1]
    for side in (trial["canary"], trial["production"]):
        side |= {"quantile": 0.9, "first_s": 0.1, "token_s": None}  # as an earlier release tells it
        del side["quantiles"]
    earlier = canary_lines({**(await admin(clients[0], world, "GET", TWO)), "trial": trial})
    assert earlier[1].endswith("requests failed")
    # Control is another one, and ingresses tell it all that they have counted.
    adapters = Adapters(world.registry, world.store, keep_versions=10, clock=lambda: 9.0)
    world.control.gatekeeper = Gatekeeper(GateSection(**GATE), adapters, lambda: 0.0)
    await shown(clients[0], world, lambda f: f["trial"] and whole(f))


async def test_who_is_not_drawn_is_not_counted(world, versions, clients):
    """A version or canary that is asked for by name, and a canary whose gate is off."""
    first, second = versions
    world.model.script = failing(second, AdapterRejected("No.", code="adapter_quarantined"))
    await canary(clients, world, second, weight=0.0)
    assert await ask(clients, "t1/two@canary", 40) == 0
    assert await ask(clients, f"t1/two@{first[:12]}", 40) == 40
    await asyncio.sleep(0.2)
    found = await admin(clients[0], world, "GET", TWO)
    assert found["trial"] is None and "no request yet" in canary_lines(found)[0]
    await canary(clients, world, second, weight=0.5, gate=False)
    assert await ask(clients) < 100
    await asyncio.sleep(0.2)
    found = await admin(clients[0], world, "GET", TWO)
    assert found["aliases"]["production"]["canary"] == second and found["trial"] is None
    assert "gate is off" in canary_lines(found)[0]


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (AdapterRejected("", code="adapter_quarantined"), "adapter_quarantined"),
        (LoraplexError("", code="not_finite"), "not_finite"),
        (RequestTimeout(""), "timeout"),
        (CoreLost(""), "core_lost"),
        (AdapterUnavailable("", code="object_missing"), "object_missing"),
        (ValueError("a bug"), "internal_error"),
        (AdapterUnavailable("", code="store_unavailable"), None),
        (AdapterUnavailable("", code="no_room_beside_pins"), None),
        (ReplicaLost(""), None),
        (Unavailable("", code="overloaded"), None),
        (Unavailable("", code="aborted"), None),
        (TooManyRequests(""), None),
        (InvalidRequest("", code="context_length_exceeded"), None),
        (NotFound("", code="adapter_retired"), None),
    ],
)
def test_whose_fault_an_error_is(error, counts):
    assert failure(error) == counts


async def test_a_report_that_cannot_be_read_changes_nothing(world, versions):
    keeper = world.control.gatekeeper
    with pytest.raises(InvalidRequest, match="Report version 2"):
        keeper.observe({"v": 2, "epoch": "a", "trials": []})
    trial = {"model": "t1/two", "number": 1, "production": versions[0], "canary": versions[1]}
    with pytest.raises(InvalidRequest, match="can't be read"):
        keeper.observe({"v": 1, "epoch": "a", "trials": [{"trial": trial, "sides": {}}]})
    assert keeper.trial("t1/two") == {"trial": None}


async def test_somebody_else_may_be_faster(world, versions, clients):
    """The canary is another by the time that the gate finds it worse: it stays."""
    first, second = versions
    await canary(clients, world, second, weight=0.5)
    trial = Trial("t1/two", 9000, first, "f" * 64)
    assert world.control.gatekeeper.observe(report(trial, WORSE)) == {"ended": []}
    alias = (await admin(clients[0], world, "GET", TWO))["aliases"]["production"]
    assert (alias["canary"], alias["ended"]) == (second, [])


# Control alone ------------------------------------------------------------------------------------
@pytest.fixture
def registry(world):
    return Contended(world.registry)


@pytest.fixture
def adapters(world, registry):
    """Whose clock goes on by a second with each look."""
    clock = itertools.count(100.0)
    return Adapters(registry, world.store, keep_versions=10, clock=lambda: next(clock))


@pytest.fixture
def keeper(adapters):
    return Gatekeeper(GateSection(**GATE), adapters, lambda: 0.0)


def start(adapters, digest):
    """The trial that begins with this canary."""
    record = adapters.promote("t1", "two", digest, Placing("canary", 0.5))
    trial = Trial.of(record)
    assert trial is not None and trial.canary == digest
    return trial


def running(adapters):
    return Trial.of(adapters.get("t1", "two"))


def test_a_rollback_that_others_came_before_is_tried_again(versions, registry, adapters, keeper):
    trial = start(adapters, versions[1])
    registry.times = 8
    assert keeper.observe(report(trial, WORSE)) == {"ended": []}
    assert (registry.times, running(adapters)) == (0, trial)
    assert keeper.observe(report(trial, WORSE)) == {"ended": ["t1/two"]}
    assert running(adapters) is None
    assert keeper.observe(report(trial, WORSE)) == {"ended": []}
    assert len(adapters.get("t1", "two").aliases["production"].ended) == 1


def test_the_counts_of_a_trial_before_end_no_other(world, versions, adapters, keeper):
    """An ingress whose copy of the registry is late tells of it for a while."""
    first, second = versions
    before = start(adapters, second)
    keeper.observe(report(before, EVEN))
    adapters.remove_alias("t1", "two", "canary")
    trial = start(adapters, second)
    assert trial != before
    for _ in range(2):
        assert keeper.observe(report(before, WORSE, "late")) == {"ended": []}
        assert keeper.observe(report(trial, EVEN)) == {"ended": []}
        assert running(adapters) == trial
        known = keeper.trial("t1/two")["trial"]
        assert (known["number"], known["state"]) == (trial.number, "holding")
    assert keeper.observe(report(trial, WORSE)) == {"ended": ["t1/two"]}
    # Of the same number, beside another production; back again, it is judged.
    trial = start(adapters, second)
    third = put_version(world.store, "t1", "two", b"three")
    adapters.add(third, Placing(), TenantRecord("t1"))
    assert keeper.observe(report(trial, WORSE)) == {"ended": []}
    assert running(adapters).production == third.ref.digest
    adapters.promote("t1", "two", first, Placing())
    assert keeper.observe(report(trial, WORSE)) == {"ended": ["t1/two"]}


def test_an_adapter_made_anew_begins_another_trial(versions, adapters, keeper):
    """Retired and published again with the bytes that it had: its canary is judged as any."""
    record = adapters.get("t1", "two")
    before = start(adapters, versions[1])
    assert keeper.observe(report(before, WORSE)) == {"ended": ["t1/two"]}
    adapters.retire("t1", "two", "test")
    for version in record.versions:
        placing = Placing() if version.ref.digest == versions[0] else Placing(None)
        adapters.add(version, placing, TenantRecord("t1"))
    trial = start(adapters, versions[1])
    assert trial.number > before.number
    assert keeper.observe(report(before, WORSE)) == {"ended": []}
    assert keeper.observe(report(trial, WORSE)) == {"ended": ["t1/two"]}
