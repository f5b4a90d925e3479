"""A replica or its core is killed in mid-stream; a client goes away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.support.service import Service
from tests.support.story import LONG, Story

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

Found = TypeVar("Found")
NUM_STREAMS = 4
KILLED_TOKENS = 250
"""Of a stream: ten seconds and more on two cores."""
LEFT_TOKENS = 1500
"""Of one whose client goes away: a minute and more."""
GONE_S = 60.0
REPLACED_S = 300.0
FREED_S = 1.0
STATS_PERIOD_S = 1.0
PATIENCE = 5
"""On a machine that does other things, too, it may take so many times as long."""


@pytest.fixture
def stories(service: Service) -> Iterator[tuple[list[Story], list[threading.Thread]]]:
    """Streams of the base, which go to the least loaded replica: so both have some."""
    stories = [Story() for _ in range(NUM_STREAMS)]
    threads = [
        threading.Thread(target=s.read, args=(service, "acme", KILLED_TOKENS)) for s in stories
    ]
    for thread in threads:
        thread.start()
    for story in stories:
        assert story.begun.wait(120)
    yield stories, threads
    for thread in threads:
        thread.join(300)


def _wait_for(condition: Callable[[], Found], timeout_s: float) -> Found:
    """What `condition` says in the end: something true, or after `timeout_s` whatever it is."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _dashboard_replicas(service: Service) -> dict[str, tuple[str, int]]:
    """State and process id by replica id, as the Ray dashboard serves them."""
    answer = httpx.get(
        f"{service.dashboard}/api/serve/applications/",
        headers={"Authorization": f"Bearer {service.ray_token}"},
        timeout=30,
    )
    deployments = answer.raise_for_status().json()["applications"]["loraplex"]["deployments"]
    return {
        replica["replica_id"]: (replica["state"], replica["pid"])
        for replica in deployments["Replica"]["replicas"]
    }


@pytest.mark.parametrize("victim", ["replica", "core"])
def test_a_kill_in_mid_stream(
    service: Service,
    stories: tuple[list[Story], list[threading.Thread]],
    victim: str,
) -> None:
    told, threads = stories
    before = _dashboard_replicas(service)
    busy = _wait_for(lambda: _busy(service), PATIENCE * STATS_PERIOD_S)
    assert busy is not None
    pids = busy["pids"]
    assert {"replica", "core", "loader"} <= set(pids)
    assert pids["replica"] in {pid for _, pid in before.values()}
    os.kill(pids[victim], signal.SIGKILL)

    answer = _ask(service)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "SELECT COUNT(*) FROM cars;"

    assert _wait_for(lambda: not any(_alive(pid) for pid in pids.values()), GONE_S), pids
    for thread in threads:
        thread.join(300)
    cut = [story for story in told if story.error is not None]
    assert cut
    for story in cut:
        assert story.text
        assert story.error and story.error["type"] == "server_error"
        assert story.finish is None and not story.done
    for story in told:
        assert story.error is not None or (story.done and story.finish == "length")

    def replaced() -> bool:
        now = _dashboard_replicas(service)
        running = [pid for state, pid in now.values() if state == "RUNNING"]
        return len(running) == len(before) and pids["replica"] not in running

    assert _wait_for(replaced, REPLACED_S), _dashboard_replicas(service)
    assert _wait_for(lambda: len(service.replicas()) == len(before), REPLACED_S)
    assert all(_alive(pid) for replica in service.replicas() for pid in replica["pids"].values())


def _ask(service: Service) -> httpx.Response:
    """Once. A replica may be sent it that doesn't know yet that its core is dead; what the core has
    not read is taken to another."""
    body = {
        "model": "globex/sql",
        "messages": [{"role": "user", "content": "How many cars are there?"}],
        "max_tokens": 40,
        "temperature": 0,
    }
    with service.client("globex") as client:
        return client.post("/v1/chat/completions", json=body)


def _busy(service: Service) -> dict[str, Any] | None:
    """A replica that says that it runs something."""
    return next((r for r in service.replicas() if r["stats"]["num_running"] > 0), None)


def _in_use(service: Service) -> tuple[int, int]:
    """(sequences running or waiting, pages that sequences hold), over all replicas."""
    stats = [replica["stats"] for replica in service.replicas()]
    sequences = sum(s["num_running"] + s["num_waiting"] + s["num_warming"] for s in stats)
    return sequences, sum(s["held_pages"] for s in stats)


def test_a_client_that_goes_away_frees_its_pages(service: Service) -> None:
    """Within a second, where the machine does nothing else."""
    assert _wait_for(lambda: _in_use(service) == (0, 0), 120), _in_use(service)
    body = {**LONG, "max_tokens": LEFT_TOKENS, "stream": True}
    with (
        service.client("acme") as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        for _ in range(20):
            next(lines)
        assert _wait_for(lambda: _in_use(service)[0] == 1, PATIENCE * STATS_PERIOD_S)
        assert _in_use(service)[1] > 0
    # Statistics are at most their period old when they say so.
    allowed_s = PATIENCE * (FREED_S + STATS_PERIOD_S)
    assert _wait_for(lambda: _in_use(service) == (0, 0), allowed_s), _in_use(service)
