"""One walk of every endpoint. What only Ray can show: handles, the router, disconnects through the
proxy, a replica that is lost, and that the ingress process stays free of torch."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from deployments.telemetry import instruments as i
from tests.support.asked_service import counted, replicas, wait_for
from tests.support.ingress import bearer, error_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]
HELLO = [{"role": "user", "content": "hi"}]


def test_ready_and_request_id(url):
    ready = httpx.get(f"{url}/ready", timeout=30)
    assert ready.json() == {"status": "ready", "replicas": 2}
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    answer = httpx.get(f"{url}/health", headers={"x-request-id": "mine-1"})
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


@pytest.mark.parametrize("model", ["org/tiny", "t1/one", "two"])
def test_chat_and_stream_agree(client, model):
    whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=20)
    assert whole.model == model
    assert whole.usage.completion_tokens == 20
    said = counted(whole.choices[0].message.content)
    first = 1000 + whole.usage.prompt_tokens
    assert said == list(range(first, first + 20))
    stream = client.chat.completions.create(
        model=model,
        messages=HELLO,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage.completion_tokens == 20


def test_many_prompts_and_choices_in_one_call(client):
    prompts = ["a" * k for k in range(1, 41)]
    answer = client.completions.create(model="t1/one", prompt=prompts, max_tokens=5)
    assert [counted(c.text) for c in answer.choices] == [
        list(range(1000 + k, 1005 + k)) for k in range(1, 41)
    ]


def test_concurrent_requests_all_answer(url, keys):
    results = []

    def ask(k):
        with httpx.Client(base_url=url, headers=bearer(keys["t1"]), timeout=60) as http:
            body = {"model": "t1/one", "prompt": "a" * k, "max_tokens": 5}
            answer = http.post("/v1/completions", json=body).raise_for_status()
            results.append((k, counted(answer.json()["choices"][0]["text"])))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(1, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(k, list(range(1000 + k, 1005 + k))) for k in range(1, 25)]


def test_residency_shows(loraplex, client):
    client.completions.create(model="t1/one", prompt="a", max_tokens=1)
    view = loraplex("adapters", "show", "t1/one")
    assert view["status"] == "resident"
    assert "device" in {p["tier"] for p in view["replicas"]}
    assert {p["slot"] for p in view["replicas"]} <= {0, 1}


def places(loraplex, model):
    """{slot: tier} of its current version."""
    return {p["slot"]: p["tier"] for p in loraplex("adapters", "show", model)["replicas"]}


def test_a_pin_reaches_every_replica_without_a_request(loraplex, keys, url, admin_key):
    key = "t1/" + loraplex("adapters", "publish", "t1/pinned", "pinned")["version"]

    def pinned():
        return [key in r["residency"]["pinned"] for r in replicas(url, admin_key)]

    loraplex("adapters", "pin", "t1/pinned", "--replicas", "all")
    wait_for(lambda: pinned() == [True, True])
    wait_for(lambda: places(loraplex, "t1/pinned") == {0: "device", 1: "device"})
    loraplex("adapters", "unpin", "t1/pinned")
    wait_for(lambda: pinned() == [False, False])


def test_a_near_full_owner_s_overflow_is_told_ahead(loraplex, http, url, admin_key):
    """Near its bound, 8 of 32 rows, the router tells the next replica before it sends anything
    there."""
    loraplex("adapters", "publish", "t1/hinted", "hinted")
    body = {"model": "t1/hinted", "prompt": "a"}

    def counts(name):
        return [r["stats"][name] for r in replicas(url, admin_key)]

    def asked():
        """Prompt tokens that each replica was sent since, the other before the owner."""
        return sorted(now - then for now, then in zip(counts("prompt_tokens"), before, strict=True))

    # A stream that another test let go of would count as one of these.
    wait_for(lambda: counts("num_running") == [0, 0])
    # Statistics come once a second, and a router drops what a replica reported after ten.
    time.sleep(11)
    before = counts("prompt_tokens")
    begun = []  # who lets go of its lines ends its stream
    with contextlib.ExitStack() as streams:
        for _ in range(6):
            said = {**body, "max_tokens": 2000, "stream": True}
            stream = streams.enter_context(http.stream("POST", "/v1/completions", json=said))
            begun.append(stream.iter_lines())
            next(begun[-1])
        # One more at a time is never above the bound. A router knows of what another has sent when
        # its own next request has been admitted.
        num_sent = 6
        while len(places(loraplex, "t1/hinted")) == 1 and num_sent < 14:
            http.post("/v1/completions", json={**body, "max_tokens": 1}).raise_for_status()
            num_sent += 1
        wait_for(lambda: places(loraplex, "t1/hinted") == {0: "device", 1: "device"})
        wait_for(lambda: sum(asked()) == num_sent)
        assert asked() == [0, num_sent]


def test_errors_pass_through_ray(http, loraplex):
    def ask(**fields):
        return http.post("/v1/chat/completions", json={"messages": HELLO, **fields})

    assert error_of(ask(model="t2/one"), 404)["code"] == "model_not_found"
    assert error_of(ask(model="t1/one", max_tokens=-1), 400)["param"] == "max_tokens"
    assert error_of(ask(model="t1/one", max_tokens=10**9), 400)["code"] == "context_length_exceeded"
    said = loraplex("adapters", "publish", "t1/bad", "../model", code=1)
    assert "import root" in said
    assert "no tenant t9" in loraplex("adapters", "publish", "t9/bad", "one", code=1)
    assert "no adapter t1/bad" in loraplex("adapters", "show", "t1/bad", code=1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_pages(http, url, admin_key, stream):
    """Most of 4000 steps of 10 ms are left when it goes."""

    def working():
        stats = [r["stats"] for r in replicas(url, admin_key)]
        return any(s["num_running"] or s["num_waiting"] for s in stats if s)

    body = {"model": "org/tiny", "prompt": "a", "max_tokens": 4000, "stream": stream, "n": 2}
    wait_for(lambda: not working())
    if stream:
        with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            next(lines)
            wait_for(working)
    else:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=body, timeout=2.5)
    # Counters come once a second: pages free within a second show within two and a bit, or some
    # more where others have the processors. The steps would take half a minute.
    assert wait_for(lambda: not working()) < 12.5


def test_no_torch_in_ingress_and_replica_processes(url):
    found = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            name = (process / "cmdline").read_text()
            match = re.search(r"ServeReplica:service:(\w+)", name)
            if match:
                found[match[1]] = "libtorch" in (process / "maps").read_text()
    assert found == {"Ingress": False, "Replica": False, "Control": True}


@pytest.mark.parametrize("victim", ["replica", "core"])
def test_a_lost_replica_ends_its_streams_with_an_error_and_is_replaced(
    http, client, url, admin_key, victim, collector
):
    losses = collector.counted(i.LOSSES.name)
    deaths = collector.counted(i.CORE_DEATHS.name)
    wait_for(lambda: len(replicas(url, admin_key)) == 2)
    body = {"model": "t1/one", "prompt": "a", "max_tokens": 4000, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        wait_for(lambda: any(_busy(r) for r in replicas(url, admin_key)))
        pids = next(r for r in replicas(url, admin_key) if _busy(r))["pids"]
        os.kill(pids[victim], signal.SIGKILL)
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] in (
        "replica_lost",
        "core_lost",
    )
    collector.wait(lambda: collector.counted(i.LOSSES.name) > losses)
    if victim == "core":
        collector.wait(lambda: collector.counted(i.CORE_DEATHS.name) == deaths + 1)
    answer = client.completions.create(model="t1/one", prompt="a", max_tokens=3)
    assert counted(answer.choices[0].text) == [1001, 1002, 1003]
    wait_for(lambda: not any(_alive(pid) for pid in pids.values()))
    wait_for(lambda: sum(r["ready"] and r["pids"] != pids for r in replicas(url, admin_key)) == 2)


def _busy(replica):
    return replica["stats"] is not None and replica["stats"]["num_running"] > 0


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] != "Z"
    except OSError:
        return False
