"""What `loraplex top` makes of two moments of a service, and how it reads."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from deployments.command_line import cli
from deployments.command_line.top_figures import figures
from deployments.command_line.top_view import view
from deployments.replica.activity import KEPT, Activity
from deployments.rest.service_status import COPIED, service_status
from engine.core_stats import CoreStats
from engine.tenant_load import TenantLoad
from engine.usage import TenantUsage
from tests.support.ingress import World, bearer

SECONDS = 2.0


def tenant(number: int, *, tokens: int = 0, running: int = 1, waiting: int = 2) -> dict[str, Any]:
    counts = {"running": running, "waiting": waiting, "tokens": tokens}
    return {"id": f"tenant-{number:03d}", "weight": 1.0, "lag": 10.0 * number, **counts}


def replica(slot: int, tenants: list[dict[str, Any]], **stats: Any) -> dict[str, Any]:
    """As `Replica.status` answers."""
    known = {**dict.fromkeys(COPIED, 0), "num_pages": 400, "free_pages": 100, "held_pages": 200}
    known |= {"arrivals": (("device", 0), ("cold", 0)), "queue_s": 0.5}
    return {
        "slot": slot,
        "ready": True,
        "pids": {"core": 77},
        "device": {"kind": "cpu"},
        "rows": 32,
        "failed": {},
        "residency": {"device": ["a/1", "a/2"], "host": ["a/1"], "loading": ["b/3"], "pinned": []},
        "tenants": tenants,
        "stalls": {"num": stats.pop("num_stalls", 0), "seconds": stats.pop("stalled_s", 0.0)},
        "stats": {**known, **stats},
    }


def moments(num_tenants: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two, `SECONDS` apart; in between tenant i has got 100 - i tokens or none on each replica."""
    before = [tenant(i, tokens=1000) for i in range(num_tenants)]
    after = [tenant(i, tokens=1000 + max(0, 100 - i)) for i in range(num_tenants)]
    grown = {
        "num_steps": 100,
        "num_replayed": 50,
        "output_tokens": 800,
        "prompt_tokens": 400,
        "cached_tokens": 100,
        "num_running": 20,
        "num_waiting": 6,
        "num_warming": 2,
        "step_p50_s": 0.0091,
        "step_p99_s": 1.25,
        "num_adapters": 5,
        "num_loads": 3,
        "num_stalls": 1,
        "stalled_s": 0.25,
        "arrivals": (("device", 9), ("cold", 1)),
    }
    first = service_status([replica(s, before) for s in (1, 0)], 1000.0, 1000)
    last = service_status([replica(s, after, **grown) for s in (1, 0)], 1000.0 + SECONDS, 1000)
    return first, last


def test_rates_are_what_grew_over_the_time_between() -> None:
    told = figures(*moments(3), max_tenants=10)
    work = told.work
    assert told.interval_s == SECONDS and work is not None
    assert [r.slot for r in told.replicas] == [0, 1]
    assert (work.tokens_s, work.prompt_s, work.steps_s) == (800.0, 300.0, 100.0)
    assert (work.rows_a_step, work.prompt_a_step) == (8.0, 3.0)
    assert (work.cached_share, work.graph_share, work.hit_share) == (0.25, 0.5, 0.9)
    assert (work.misses_s, work.loads_s) == (1.0, 3.0)
    assert (work.stalls_s, work.stall_s) == (1.0, 0.25)
    assert (work.running, work.max_rows, work.waiting, work.warming) == (40, 64, 12, 4)
    assert (work.queue_s, work.held, work.cached) == (0.5, 0.5, 0.25)
    assert told.adapters == {"loading": 2, "host": 2, "device": 4, "pinned": 0}
    assert [t.id for t in told.tenants] == ["tenant-000", "tenant-001", "tenant-002"]
    assert [t.tokens_s for t in told.tenants] == [100.0, 99.0, 98.0]
    assert [t.running for t in told.tenants] == [2, 2, 2]
    assert math.isclose(sum(t.share for t in told.tenants), 1.0)
    assert all(math.isclose(t.fair, 1 / 3) for t in told.tenants)


def test_of_many_tenants_the_busiest_are_named_and_the_rest_pooled() -> None:
    first, last = moments(300)
    told = figures(first, last, max_tenants=10)
    assert [t.id for t in told.tenants] == [f"tenant-{i:03d}" for i in range(10)]
    assert told.others["num_tenants"] == 290 and told.others["running"] == 580
    every = sum(max(0, 100 - i) for i in range(300))
    rest = every - sum(100 - i for i in range(10))
    assert told.others["tokens_s"] == 2 * rest / SECONDS
    assert math.isclose(told.others["share"], rest / every)
    # The service itself may have pooled some already.
    both = [replica(s, [tenant(i) for i in range(300)]) for s in (0, 1)]
    pooled = service_status(both, 0.0, 100)
    assert len(pooled["tenants"]) == 100 and pooled["others"]["num_tenants"] == 200


def test_a_tenant_that_comes_to_another_replica_brings_no_old_tokens() -> None:
    """A replica tells of a tenant for some seconds after its last request."""
    first = service_status([replica(0, [tenant(0, tokens=900)]), replica(1, [])], 0.0, 10)
    both = [replica(0, [tenant(0, tokens=940)]), replica(1, [tenant(0, tokens=5000)])]
    assert figures(first, service_status(both, SECONDS, 10), 10).tenants[0].tokens_s == 20.0
    # And takes none along that it had where it isn't told of any more.
    again = figures(service_status(both, 0.0, 10), service_status(both[:1], SECONDS, 10), 10)
    assert again.tenants[0].tokens_s == 0.0


def test_of_a_service_that_does_not_tell_tokens_by_core_all_else_is_shown() -> None:
    first, last = moments(3)
    for row in (*first["tenants"], *last["tenants"]):
        del row["tokens_by"]
    told = figures(first, last, max_tenants=10)
    assert [(t.tokens_s, t.share) for t in told.tenants] == [(0.0, 0.0)] * 3
    assert told.work is not None and told.work.tokens_s == 800.0
    assert "tenant-002" in shown(told, 80)


def test_a_core_that_began_again_counts_from_nothing() -> None:
    first, last = moments(1)
    for status in last["replicas"]:
        status["epoch"] = 78
    work = figures(first, last, 10).work
    assert work is not None and work.tokens_s == 0.0 and work.hit_share is None


def test_a_replica_that_has_said_nothing_yet() -> None:
    silent = {**replica(0, []), "stats": None, "ready": False, "device": None}
    told = figures(None, service_status([silent], 0.0, 10), 10)
    assert told.work is None and told.interval_s == 0.0
    assert "0 of 1 replicas ready" in shown(told, 80) and "nobody asks" in shown(told, 80)


def shown(told: Any, width: int) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(view(told, "http://127.0.0.1:8000", width))
    return captured.get()


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("num_tenants", [3, 300])
def test_it_reads_at_any_width_for_any_number_of_tenants(width: int, num_tenants: int) -> None:
    told = figures(*moments(num_tenants), max_tenants=8)
    text = shown(told, width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "…" not in text, "something was cut"
    assert "40 running of 64 rows, 12 queued" in text
    assert ("292 others" in text) == (num_tenants == 300)
    assert "4 of them stalled" in " ".join(text.split())


def test_of_many_replicas_a_screen_shows_those_that_are_not_ready() -> None:
    statuses = [{**replica(s, [], num_waiting=s), "ready": s != 7} for s in range(40)]
    told = figures(None, service_status(statuses, 0.0, 10), 10)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(view(told, "u", 80, 20))
    (table,) = [x for x in captured.get().split("\n\n") if "dev/host/load" in x]
    rows = [line.split()[:2] for line in table.splitlines() if not line.startswith("replica")]
    assert rows == [["7", "not"], ["39", "cpu"], ["38", "cpu"], ["37", "others"]]


def test_tenants_are_shown_a_while_after_their_last_request() -> None:
    activity = Activity()
    stats = dict.fromkeys(CoreStats.__dataclass_fields__, 0)

    def heard(loads: tuple[TenantLoad, ...], usage: tuple[TenantUsage, ...] = ()) -> set[str]:
        activity.heard(CoreStats(**{**stats, "tenants": loads, "usage": usage, "service": ()}))
        return {t["id"] for t in activity.tenants()}

    busy = TenantLoad("a", 2.0, 1, 1, 5.0)
    used = TenantUsage("b", num_requests=1, prompt_tokens=10, cached_tokens=4, output_tokens=7)
    assert heard((busy,), (used,)) == {"a", "b"}
    rows = {t["id"]: t for t in activity.tenants()}
    assert (rows["a"]["running"], rows["a"]["waiting"], rows["a"]["weight"]) == (1, 1, 2.0)
    assert rows["b"]["tokens"] == 13 and rows["b"]["running"] == 0
    assert activity.told()["stalls"] is None
    for _ in range(KEPT - 1):
        assert "b" in heard((busy,))
    assert heard((busy,)) == {"a"}
    # Back in the queue, it has not lost what it had: nothing would be known of its rate.
    heard((TenantLoad("b", 1.0, 0, 1, 0.0),))
    assert {t["id"]: t["tokens"] for t in activity.tenants()}["b"] == 13


def test_an_adapters_bytes_alone_make_no_tenant_busy() -> None:
    activity = Activity()
    stats = dict.fromkeys(CoreStats.__dataclass_fields__, 0)
    idle = (TenantUsage("idle", host_byte_s=5.0),)
    activity.heard(CoreStats(**{**stats, "tenants": (), "usage": idle, "service": ()}))
    assert activity.tenants() == []
    # Nor does what it was served once, told again with them from time to time.
    for second in range(2 * KEPT):
        lies = (TenantUsage("idle", 1, 10, 0, 7, host_byte_s=6.0 + second),)
        activity.heard(CoreStats(**{**stats, "tenants": (), "usage": lies, "service": ()}))
        assert bool(activity.tenants()) == (second < KEPT)


async def test_the_endpoint_is_for_admins(client: httpx.AsyncClient, world: World) -> None:
    world.model.replies = [replica(0, [tenant(1), tenant(2)])]
    assert (await client.get("/v1/status")).status_code == 403
    admin = bearer(world.keys["admin"])
    answer = await client.get("/v1/status?limit=1", headers=admin)
    told = answer.json()
    assert [t["id"] for t in told["tenants"]] == ["tenant-001"]
    assert told["others"]["num_tenants"] == 1
    bad = await client.get("/v1/status?limit=0", headers=admin)
    assert bad.status_code == 400


def test_without_a_service_it_says_so() -> None:
    words = ["--url", "http://127.0.0.1:9", "--admin-key", "k", "top"]
    for more in (["--once"], ["--json"], []):
        result = CliRunner().invoke(cli.app, [*words, *more])
        assert result.exit_code == 3 and "can't be reached" in result.output


def test_json_can_be_read() -> None:
    told = figures(*moments(2), max_tenants=1)
    assert json.loads(json.dumps(dataclasses.asdict(told)))["others"]["num_tenants"] == 1
