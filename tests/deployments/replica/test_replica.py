"""A replica without Ray, its core with the fake device: streams, aborts, deaths, clean ends."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deployments.replica.replica import Replica
from engine.errors import LoraplexError, Unavailable
from engine.fake_runner import FIRST_TOKEN
from router.autoscaling import FleetLoad
from tests.support.replicas import (
    LOADER,
    adapter,
    alive,
    call,
    engine_config,
    replica_config,
    request,
    until,
)

Events = list[dict[str, Any]]
Make = Callable[..., Awaitable[Replica]]


@pytest_asyncio.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes started replicas; none of their processes may be left."""
    made: list[Replica] = []

    async def start(
        *,
        step_s: float = 0.001,
        max_seqs: int = 32,
        leave: Callable[[int], object] = int,
        clock: Callable[[], float] = time.monotonic,
        **changes: Any,
    ) -> Replica:
        config = replica_config(
            tmp_path, engine_config(tmp_path, step_s=step_s, max_seqs=max_seqs), **changes
        )
        replica = Replica(config, slot=lambda: 3, leave=leave, loader=LOADER, clock=clock)
        made.append(replica)
        await replica.start()
        return replica

    yield start
    for replica in made:
        pids = (await replica.status())["pids"]
        replica.shutdown()
        assert not [pid for role, pid in pids.items() if role != "replica" and alive(pid)]


async def collect(replica: Replica, body: dict[str, Any]) -> Events:
    return [event async for events in replica.generate(body) for event in events]


def text_of(start: int, count: int) -> str:
    return "".join(f"<{FIRST_TOKEN + i}>" for i in range(start, start + count))


async def test_what_a_replica_has_served_is_told_with_the_others_service(make: Make) -> None:
    replica = await make()
    await collect(replica, call(request("r", max_tokens=20)))
    other = {"slot": 0, "epoch": "another", "served": {"somebody": 5.0}}
    order = {"v": 1, "peers": [other]}
    served = 0.0
    while served < 2 * 20:
        await asyncio.sleep(0.05)
        answer = await replica.exchange_service(order)
        served = sum(answer["served"].values())
    assert answer["slot"] == 3 and "somebody" not in answer["served"]


async def test_every_token_of_many_streams_arrives(make: Make) -> None:
    replica = await make()
    calls = [
        call(request(f"r{i}", max_tokens=20), request("same", max_tokens=9)) for i in range(24)
    ]
    answers = await asyncio.gather(*(collect(replica, c) for c in calls))
    for events in answers:
        for index, count in ((0, 20), (1, 9)):
            mine = [e for e in events if e["i"] == index]
            assert "".join(e["text"] for e in mine) == text_of(3, count)
            assert sum(e["tokens"] for e in mine) == count
            assert mine[-1]["finish"] == "length"
            assert mine[-1]["prompt_tokens"] == 3
            assert mine[-1]["completion_tokens"] == count
            assert all("finish" not in e for e in mine[:-1])


async def test_the_first_token_leaves_at_once(make: Make) -> None:
    replica = await make(step_s=0.05)
    stream = replica.generate(call(request(max_tokens=3)))
    first = await anext(stream)
    assert first == [{"i": 0, "text": text_of(3, 1), "tokens": 1}]
    assert len([e async for events in stream for e in events]) == 2


async def test_stop_string_ends_the_sequence_in_the_core(make: Make) -> None:
    replica = await make()
    body = call(request(max_tokens=3000, stop=(f"{FIRST_TOKEN + 5}>",)))
    events = await asyncio.wait_for(collect(replica, body), 60)
    assert "".join(e["text"] for e in events) == text_of(3, 2) + "<"
    assert events[-1]["finish"] == "stop"
    assert events[-1]["completion_tokens"] == 3
    await until_free(replica)


async def test_its_status_does_not_grow_with_the_tenants(make: Make) -> None:
    replica = await make(step_s=0.001)
    await collect(replica, call(request(max_tokens=3)))
    while not (told := await replica.activity())["tenants"]:
        await asyncio.sleep(0.01)
    status = await replica.status()
    assert not {"tenants", "stalls"} & status.keys() and status.keys() < told.keys()
    assert not {"tenants", "usage", "service"} & status["stats"].keys()
    assert {"num_steps", "arrivals", "queue_s"} <= status["stats"].keys()


async def until_free(replica: Replica) -> None:
    """Until the core runs nothing and every page but the reserved one is free."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        stats = (await replica.status())["stats"]
        if stats and not stats["num_running"] + stats["num_waiting"] + stats["num_warming"]:
            return
        assert asyncio.get_running_loop().time() < deadline, stats
        await asyncio.sleep(0.01)


async def test_a_caller_that_goes_away_frees_its_rows(make: Make) -> None:
    replica = await make(step_s=0.002, max_seqs=1)
    streams = [replica.generate(call(request(f"r{i}", max_tokens=4000))) for i in range(3)]
    await anext(streams[0])
    waiting = asyncio.create_task(anext(streams[1]))
    await asyncio.sleep(0.05)
    assert not waiting.done()  # one row alone
    await streams[0].aclose()
    assert await asyncio.wait_for(waiting, 60)
    reader = asyncio.create_task(collect(replica, call(request("c", max_tokens=4000))))
    await asyncio.sleep(0.02)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await streams[1].aclose()
    assert (await asyncio.wait_for(collect(replica, call(request())), 60))[-1]["finish"] == "length"
    await until_free(replica)


async def test_deadline_ends_the_call_with_a_timeout(make: Make) -> None:
    replica = await make(step_s=0.002)
    events = await collect(replica, call(request(max_tokens=4000), deadline_s=1.0))
    assert events[0]["text"]
    assert events[-1]["error"]["code"] == "timeout" and events[-1]["error"]["status"] == 504
    await until_free(replica)


async def test_adapter_is_loaded_and_shown(make: Make) -> None:
    replica = await make()
    ref = adapter("support")
    events = await collect(replica, call(request(ref=ref)))
    assert events[-1]["finish"] == "length"
    stats = await replica.record_routing_stats()
    assert stats["slot"] == 3 and stats["rows"] == 32
    assert ref.key in stats["device"] and stats["loading"] == []


async def test_sigkill_of_the_core_ends_streams_with_an_error_and_the_process(make: Make) -> None:
    left: list[int] = []
    replica = await make(step_s=0.005, leave=left.append)
    readers = [
        asyncio.create_task(collect(replica, call(request(f"r{i}", max_tokens=4000))))
        for i in range(5)
    ]
    pids = (await replica.status())["pids"]
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    killed = loop.time()
    os.kill(pids["core"], signal.SIGKILL)
    for events in await asyncio.gather(*readers):
        assert events[-1]["error"]["code"] == "core_lost"
        assert events[-1]["error"]["status"] == 503
    await until(lambda: left == [1])
    assert loop.time() - killed < 10, "the calls have half a minute"
    with pytest.raises(Unavailable):
        await replica.check_health()
    late = await collect(replica, call(request()))
    assert late == [{"i": 0, "error": late[0]["error"]}]
    assert late[0]["error"]["code"] == "replica_lost"
    await until(lambda: not alive(pids["core"]))


async def test_what_a_core_had_not_read_it_did_not_die_of(make: Make) -> None:
    """So it may be tried elsewhere. What the core is busy with, or has just been given, may not."""
    replica = await make(step_s=0.005)
    busy = asyncio.create_task(collect(replica, call(request("busy", max_tokens=4000))))
    await until(lambda: replica._stats is not None and replica._stats.num_running == 1)
    core = (await replica.status())["pids"]["core"]
    os.kill(core, signal.SIGSTOP)
    os.waitid(os.P_PID, core, os.WSTOPPED | os.WNOWAIT)
    late = [
        asyncio.create_task(collect(replica, call(*(request(f"r{i}-{n}") for n in range(i)))))
        for i in (1, 2, 1)
    ]
    await asyncio.sleep(0.2)
    os.kill(core, signal.SIGKILL)
    later = asyncio.create_task(collect(replica, call(request())))
    for events in await asyncio.gather(*late, later):
        assert {event["error"]["code"] for event in events} == {"replica_lost"}
    assert (await busy)[-1]["error"]["code"] == "core_lost"


async def test_a_call_that_can_not_be_begun_holds_up_no_end(make: Make) -> None:
    left: list[int] = []
    replica = await make(leave=left.append, clock=lambda: 0.0)  # no drain ever runs out
    body = call(request())
    body["requests"][0]["salt"] = lambda: "nothing that a message to the core can carry"
    with pytest.raises((AttributeError, pickle.PicklingError)):
        await collect(replica, body)
    assert (await collect(replica, call(request(max_tokens=4))))[-1]["finish"] == "length"
    busy = replica.generate(call(request(max_tokens=4000)))
    assert await anext(busy)
    os.kill((await replica.status())["pids"]["core"], signal.SIGKILL)
    last = [event async for events in busy for event in events][-1]
    assert last["error"]["code"] == "core_lost", "what was never sent is not counted"
    await until(lambda: left == [1])


async def test_sigkill_of_the_loader_is_survived(make: Make, tmp_path: Path) -> None:
    replica = await make()
    gate = tmp_path / "gate"
    held = asyncio.create_task(collect(replica, call(request(ref=adapter("held", uri=str(gate))))))
    base = await collect(replica, call(request(max_tokens=4)))
    assert base[-1]["finish"] == "length"  # nobody else waits
    await until_loading(replica)
    old = (await replica.status())["pids"]["loader"]
    os.kill(old, signal.SIGKILL)
    gate.touch()
    assert (await asyncio.wait_for(held, 60))[-1]["finish"] == "length"
    new = (await replica.status())["pids"]["loader"]
    assert new != old and alive(new) and not alive(old)
    await replica.check_health()


async def until_loading(replica: Replica) -> None:
    while not (await replica.record_routing_stats())["loading"]:
        await asyncio.sleep(0.005)


async def test_an_adapter_that_kills_the_loader_is_refused_alone(make: Make) -> None:
    replica = await make()
    bad = asyncio.create_task(collect(replica, call(request("bad", ref=adapter("killer")))))
    good = asyncio.create_task(collect(replica, call(request("good", ref=adapter("good")))))
    (refused,) = await asyncio.wait_for(bad, 60)
    assert refused["error"]["code"] == "adapter_kills_loader"
    assert refused["error"]["status"] == 422
    assert (await asyncio.wait_for(good, 60))[-1]["finish"] == "length"


async def test_health_notices_a_silent_core(make: Make) -> None:
    ahead_s = 0.0
    replica = await make(clock=lambda: time.monotonic() + ahead_s, stall_s=300.0)
    pid = (await replica.status())["pids"]["core"]

    async def healthy() -> bool:
        try:
            await replica.check_health()
        except Unavailable as error:
            assert "said nothing" in error.message
            return False
        return True

    ahead_s += 301.0
    while not await healthy():  # idle, and it still reports
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(1.5)  # what it said before has been heard
    ahead_s += 301.0
    await asyncio.sleep(1.5)
    assert not await healthy()
    os.kill(pid, signal.SIGCONT)


async def test_bad_calls_end_with_an_error_event(make: Make) -> None:
    replica = await make()
    (event,) = await collect(replica, {"v": 99, "requests": [], "deadline_s": 1.0})
    assert event["error"]["status"] == 400
    too_long = await collect(replica, call(request(max_tokens=10**6)))
    assert too_long[-1]["error"]["status"] == 400


async def test_a_core_that_can_not_start_says_why(tmp_path: Path) -> None:
    config = replica_config(tmp_path, engine_config(tmp_path))
    replica = Replica(config, slot=int, loader=LOADER, core="tests.support.no_such_module")
    with pytest.raises(LoraplexError, match="log says why"):
        await replica.check_health()
    (event,) = await collect(replica, call(request()))
    assert event["error"]["code"] == "core_start_failed"
    replica.shutdown()


async def test_the_autoscaling_policy_reads_what_a_replica_reports(make: Make) -> None:
    replica = await make()
    await collect(replica, call(request()))
    await until_free(replica)
    stats = await replica.record_autoscaling_stats()
    load = FleetLoad.read({name: {"replica": value} for name, value in stats.items()})
    assert load.num_reporting == 1 and load.rows_per_replica == stats["rows"] > 0
    assert (load.demand_per_replica, load.queue_s) == (0.0, 0.0)


@pytest.mark.parametrize("lost", ["requests", "deadline_s", "v"])
async def test_a_call_of_another_release_begins_nothing(make: Make, lost: str) -> None:
    replica = await make()
    known = call(request())
    (event,) = await collect(replica, {name: known[name] for name in known if name != lost})
    assert event["error"]["code"] == "invalid_request"
    await until_free(replica)
