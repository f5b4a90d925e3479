"""The Ray-facing router with scripted replicas, in one event loop and without a cluster."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections import Counter

import pytest
from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import PendingRequest

from deployments.telemetry.logs import about_request, begin_request
from engine.log_lines import JsonLines
from router.placement import Reason
from tests.support.routing import Harness, ScriptedReplica, probed, until


async def test_an_idle_fleet_keeps_each_adapter_on_one_replica() -> None:
    fleet = Harness(4)
    homes: dict[str, set[str]] = {}
    for _ in range(3):
        for i in range(100):
            name = await fleet.send(f"t/{i}")
            homes.setdefault(f"t/{i}", set()).add(name)
            fleet.complete(name)
    assert all(len(home) == 1 for home in homes.values())
    assert fleet.router.counters.placed == {Reason.OWNER: 300}
    fleet.check()


async def test_a_burst_for_one_adapter_stays_within_the_bound() -> None:
    fleet = Harness(4, min_bound=1)
    placed = Counter(await asyncio.gather(*(fleet.send("t/hot") for _ in range(40))))
    assert max(placed.values()) <= 13
    fleet.check()


async def test_min_bound_is_by_default_a_quarter_of_the_rows() -> None:
    fleet = Harness(4)
    for replica in fleet.replicas:
        replica.routing_stats = {**replica.routing_stats, "rows": 32}
    fleet.router.update_replicas(fleet.replicas)
    placed = Counter([await fleet.send("t/hot") for _ in range(9)])
    assert sorted(placed.values()) == [1, 8]


async def test_a_spill_goes_where_the_adapter_is_resident() -> None:
    fleet = Harness(4, min_bound=1)
    order = [fleet.router._fleet.slots[s] for s in fleet.router._ring.walk("t/hot")]
    warm = next(r for r in fleet.replicas if r.replica_id.unique_id == order[2])
    warm.routing_stats = {**warm.routing_stats, "host": ["t/digest"]}
    fleet.router.update_replicas(fleet.replicas)
    assert [await fleet.send("t/hot", "t/digest") for _ in range(2)] == [order[0], order[2]]
    assert fleet.router.counters.placed[Reason.RESIDENT] == 1


async def test_base_requests_spread_over_the_least_loaded() -> None:
    fleet = Harness(4)
    placed = Counter([await fleet.send(request_id=f"id-{i}") for i in range(40)])
    assert set(placed.values()) == {10}


async def test_concurrent_calls_that_share_an_id_all_get_a_replica() -> None:
    fleet = Harness(4, min_bound=1)
    async with asyncio.timeout(60):
        placed = await asyncio.gather(*(fleet.send("t/a", request_id="same") for _ in range(40)))
    assert len(placed) == 40


async def test_all_full_waits_and_a_completion_lets_the_first_in_line_through() -> None:
    fleet = Harness(2, cap=1)
    held = [await fleet.send("t/a"), await fleet.send("t/a")]
    done: list[int] = []

    async def wait(index: int) -> None:
        await fleet.send("t/a")
        done.append(index)

    waiting = [asyncio.create_task(wait(i)) for i in range(3)]
    await probed(fleet.replicas[0])
    assert done == []
    fleet.complete(held[0])
    await until(lambda: bool(done))
    await probed(fleet.replicas[0])
    assert done == [0]
    waiting[1].cancel()
    fleet.complete(held[0])
    await until(lambda: len(done) == 2)
    assert done == [0, 2]
    assert fleet.router._num_waiting == 0
    assert fleet.router.counters.waited == 3
    fleet.check()


async def test_a_retry_pauses_and_then_chooses_afresh() -> None:
    fleet = Harness(2)
    retry = asyncio.create_task(fleet.send("t/a", is_retry=True))
    await asyncio.sleep(0)
    assert fleet.router.counters.num_picks == 0
    await until(retry.done)
    assert retry.result() == await fleet.send("t/a")


async def test_room_that_only_a_probe_shows_ends_the_wait() -> None:
    """Another router's request ended: nothing tells us, so we ask."""
    fleet = Harness(1, cap=1)
    fleet.replicas[0].num_ongoing = 1
    fleet.router.on_new_queue_len_info(fleet.replicas[0].replica_id, 1)
    waiting = asyncio.create_task(fleet.send("t/a"))
    await probed(fleet.replicas[0])
    assert not waiting.done()
    fleet.replicas[0].num_ongoing = 0
    await until(waiting.done)
    assert waiting.result() == "r0"


async def test_with_no_replica_it_waits_for_one() -> None:
    fleet = Harness(0)
    waiting = asyncio.create_task(fleet.send("t/a"))
    picks = fleet.router.counters
    await until(lambda: picks.num_picks >= 5)
    assert not waiting.done()
    fleet.router.update_replicas([ScriptedReplica("new", 0)])
    await until(waiting.done)
    assert waiting.result() == "new"


async def test_cancelling_a_wait_leaves_no_trace() -> None:
    fleet = Harness(1, cap=1)
    held = await fleet.send("t/a")
    waiting = asyncio.create_task(fleet.send("t/a"))
    await probed(fleet.replicas[0])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert fleet.router._num_waiting == 0
    fleet.complete(held)
    assert await fleet.send("t/a") == held
    fleet.check()


async def test_a_dead_replica_leaves_its_keys_to_the_successor_and_moves_no_other() -> None:
    fleet = Harness(4)
    before = {f"t/{i}": fleet.router._ring.walk(f"t/{i}") for i in range(100)}
    fleet.router.on_replica_actor_died(fleet.id_of("r2"))
    for key, walk in before.items():
        name = await fleet.send(key)
        fleet.complete(name)
        heir = next(slot for slot in walk if slot != "slot-2")
        assert name == heir.replace("slot-", "r")
    fleet.check()


async def test_an_unreachable_replica_is_skipped_until_it_answers() -> None:
    fleet = Harness(2)
    owner = await fleet.send("t/a")
    fleet.complete(owner)
    replica = next(r for r in fleet.replicas if r.replica_id.unique_id == owner)
    replica.reachable = False
    fleet.router.on_replica_actor_unavailable(replica.replica_id)
    assert await fleet.send("t/a") != owner
    await probed(replica)
    assert fleet.router._loads.is_down(owner)
    replica.reachable = True
    await until(lambda: not fleet.router._loads.is_down(owner))
    assert await fleet.send("t/a") == owner
    fleet.check()


async def test_a_slot_outlives_its_replica() -> None:
    fleet = Harness(4)
    homes = {f"t/{i}": await fleet.send(f"t/{i}") for i in range(40)}
    for name in homes.values():
        fleet.complete(name)
    fleet.router.update_replicas([ScriptedReplica(f"new{i}", i) for i in range(4)])
    for key, name in homes.items():
        assert await fleet.send(key) == name.replace("r", "new")
    fleet.check()


class BrokenReplica(ScriptedReplica):
    """Describing it fails."""

    @property
    def routing_stats(self) -> object:
        raise RuntimeError("no stats")

    @routing_stats.setter
    def routing_stats(self, value: object) -> None:
        pass


async def test_a_rebuild_that_fails_keeps_the_old_ring_less_who_is_gone() -> None:
    fleet = Harness(2)
    owner = await fleet.send("t/a")
    kept = [r for r in fleet.replicas if r.replica_id.unique_id != owner]
    fleet.router.update_replicas([*kept, BrokenReplica("broken", 1)])
    assert await fleet.send("t/a") == kept[0].replica_id.unique_id
    fleet.router.update_replicas(fleet.replicas)
    assert await fleet.send("t/a") == owner
    fleet.check()


@pytest.mark.parametrize("wrong", [{"load_factor": 0.5}, {"load_facto": 1.5}, {"min_bound": 0}])
async def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Harness(1, **wrong)


async def test_picking_without_sending_answers_one_rank() -> None:
    fleet = Harness(2)
    metadata = RequestMetadata(request_id="a", internal_request_id="a", session_id="t/a")
    pending = PendingRequest(args=[], kwargs={}, metadata=metadata)
    [[chosen]] = await fleet.router.choose_replicas(fleet.replicas, pending)
    assert chosen.replica_id.unique_id == await fleet.send("t/a")
    assert pending.routing_context.should_backoff
    assert await fleet.router.choose_replicas(fleet.replicas) == [fleet.replicas]


async def test_counters_are_logged_as_often_as_asked(caplog) -> None:
    fleet = Harness(2, report_s=0.0)
    with caplog.at_level("INFO", logger="loraplex.router"):
        fleet.router.counters.placed.clear()
        await fleet.send("t/a")
    assert "placed: owner 1; waited 0" in caplog.text


async def test_a_line_of_the_router_as_a_whole_has_no_request_s_ids() -> None:
    """Ray may run the router in the requests' own tasks."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines("ingress", about_request))
    logger = logging.getLogger("loraplex.router")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    begin_request("req-1")
    try:
        fleet = Harness(2, report_s=0.0)
        await fleet.send("t/a")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {line["message"].split()[0] for line in told} == {"ring", "placed:"}
    assert not any("request_id" in line for line in told)


async def test_where_a_spill_is_near_the_next_replica_is_told_to_bring_the_adapter_nearer() -> None:
    fleet = Harness(3, min_bound=5)
    call = {"v": 1, "requests": [{"adapter": {"name": "a"}, "tenant": {"id": "t"}}]}
    for _ in range(5):
        owner = await fleet.send("t/a", "t/digest", args=(call,))
    told = [replica for replica in fleet.replicas if replica.hints]
    assert [len(replica.hints) for replica in told] == [1], "once, not with each request"
    (hint,) = told[0].hints
    assert hint.metadata.call_method == "prefetch" and not hint.metadata.is_streaming
    assert hint.args[0]["ref"] == {"name": "a"} and hint.args[0]["ordered"] is False
    spilled = await fleet.send("t/a", "t/digest", args=(call,))
    assert spilled == told[0].replica_id.unique_id != owner, "that is where the next one goes"
    assert fleet.router.counters.hints == 1


async def test_no_word_is_sent_ahead_for_the_base_or_for_a_warm_replica() -> None:
    fleet = Harness(3, min_bound=2)
    for replica in fleet.replicas:
        replica.routing_stats = {**replica.routing_stats, "host": ["t/digest"]}
    fleet.router.update_replicas(fleet.replicas)
    call = {"v": 1, "requests": [{"adapter": {"name": "a"}, "tenant": {"id": "t"}}]}
    base = {"v": 1, "requests": [{"adapter": None, "tenant": {"id": "t"}}]}
    for _ in range(4):
        await fleet.send("t/a", "t/digest", args=(call,))
        await fleet.send(args=(base,))
    assert not any(replica.hints for replica in fleet.replicas)
