"""The whole service on a local Ray, its replicas on the fake device: one walk of every endpoint.

What only Ray can show: handles, the router, disconnects through the proxy, publishing through
control, and that the ingress process stays free of torch.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest
import ray
import torch
from ray import serve
from typer.testing import CliRunner

from deployments.app import build
from deployments.changes.tenants import Tenants
from deployments.command_line import cli
from deployments.registry import open_registry
from deployments.telemetry import instruments as i
from deployments.telemetry.boards import boards
from deployments.telemetry.queries import Queries
from engine.model.spec import BackboneSpec
from tests.support.ingress import bearer, error_of, write_model
from tests.support.otlp_receiver import receiving
from tests.support.peft_folders import BASE_NAME, lora_tensors, write_adapter
from tests.support.prometheus import scraping

pytestmark = [pytest.mark.ray, pytest.mark.slow]
HELLO = [{"role": "user", "content": "hi"}]
CONTEXT = 4096


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("service")
    write_model(home / "model", num_tokens=8192, context=CONTEXT)
    spec = BackboneSpec.load(home / "model")
    torch.manual_seed(0)
    for name in ("one", "two", "cold", "lost", "pinned", "hinted"):
        write_adapter(home / "import" / name, lora_tensors(spec))
    return home


@pytest.fixture(scope="module")
def admin_key(home):
    registry = open_registry(f"sqlite://{home}/data/registry.db")
    numbers = iter(range(1, 100))
    tenants = Tenants(registry, clock=time.time, random_bytes=lambda n: next(numbers).to_bytes(n))
    key = tenants.create_admin_key()
    registry.close()
    return key


@pytest.fixture(scope="module")
def collector():
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def url(ray_local, home, admin_key, collector):
    values = {
        "data_dir": str(home / "data"),
        "import_root": str(home / "import"),
        "base": {
            "path": str(home / "model"),
            "name": "org/tiny",
            "revision": "r1",
            "accepts": [BASE_NAME],
        },
        "replica": {
            "num_replicas": 2,
            "device": "fake",
            "dtype": "float32",
            "threads": 1,
            "fake_step_s": 0.01,
            "max_model_len": CONTEXT,
            "memory": {"arena_bytes": 32 << 20, "host_bytes": 8 << 20},
            "shutdown_s": 2,
        },
        "ingress": {"num_replicas": 2},
        "router": {"stats_period_s": 0.25},
        "telemetry": {
            "otlp_endpoint": collector.url,
            "trace_ratio": 0.0,
            "export_s": 0.25,
            "rank_s": 2,
        },
        "gate": {"min_requests": 20},
    }
    serve.run(build(values), name="service", route_prefix="/")
    yield ray_local.url
    serve.delete("service")


@pytest.fixture(scope="module")
def loraplex(url, admin_key):
    def run(*words, code=0):
        env = {"LORAPLEX_URL": url, "LORAPLEX_ADMIN_KEY": admin_key}
        result = CliRunner().invoke(cli.app, [*words, "--json"], env=env)
        assert result.exit_code == code, result.output
        return json.loads(result.output) if code == 0 else result.output

    return run


@pytest.fixture(scope="module")
def keys(loraplex):
    """Two tenants; t1 has the adapters one and two."""
    keys = {t: loraplex("tenants", "create", t)["key"] for t in ("t1", "t2")}
    for name in ("one", "two"):
        view = loraplex("adapters", "publish", f"t1/{name}", name)
        assert view["status"] == "published"
    return keys


@pytest.fixture
def client(url, keys):
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key=keys["t1"], max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.fixture
def http(url, keys):
    with httpx.Client(base_url=url, headers=bearer(keys["t1"]), timeout=60) as client:
        yield client


def counted(text):
    """The positions that the fake device told, in order."""
    return [int(n) for n in re.findall(r"<(\d+)>", text)]


def replicas(url, admin_key):
    answer = httpx.get(f"{url}/v1/replicas", headers=bearer(admin_key), timeout=30)
    return answer.json()["data"]


def wait_for(condition, within_s=120):
    """How long it took until `condition()`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, "not within the time"
        time.sleep(0.02)
    return time.monotonic() - began


EFFECTIVE_S = 10.0
"""Five times the two seconds in which a change is in effect on every ingress, by the documents."""


def in_effect_s(everywhere):
    """When the round of asking began that found it `everywhere`."""
    began = time.monotonic()
    while True:
        round_s = time.monotonic() - began
        if everywhere():
            return round_s
        assert round_s < 120, "not within the time"


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
    body = {"model": "t1/hinted", "prompt": "a", "max_tokens": 2000, "stream": True}
    begun = []  # who lets go of its lines ends its stream
    with contextlib.ExitStack() as streams:
        for _ in range(8):
            stream = streams.enter_context(http.stream("POST", "/v1/completions", json=body))
            begun.append(stream.iter_lines())
            next(begun[-1])
            time.sleep(0.5)  # until the routers of both ingresses know
            if len(places(loraplex, "t1/hinted")) == 2:
                break
        wait_for(lambda: places(loraplex, "t1/hinted") == {0: "device", 1: "device"})
        assert min(r["stats"]["num_running"] for r in replicas(url, admin_key)) == 0


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


def test_revocation_reaches_every_ingress(url, loraplex):
    """Each knows two polls of the registry later; `rest/test_admin_routes.py` counts them."""
    key = loraplex("tenants", "create", "t3")["key"]

    def status():
        return httpx.get(f"{url}/v1/models", headers=bearer(key), timeout=30).status_code

    assert status() == 200
    new = loraplex("tenants", "rotate-key", "t3")["key"]
    assert in_effect_s(lambda: all(status() == 401 for _ in range(20))) < EFFECTIVE_S
    assert httpx.get(f"{url}/v1/models", headers=bearer(new)).status_code == 200


def test_usage_adds_up_and_tokens_a_minute_are_one_bucket_of_two_ingresses(http, loraplex):
    def used():
        (line,) = loraplex("usage", "t1")
        return line["prompt_tokens"], line["output_tokens"]

    def ask(num_tokens=5):
        body = {"model": "t1/one", "prompt": "a" * 40, "max_tokens": num_tokens}
        return http.post("/v1/completions", json=body)

    prompt, output = used()
    answers = [ask().raise_for_status().json()["usage"] for _ in range(6)]
    wanted = (
        prompt + sum(usage["prompt_tokens"] for usage in answers),
        output + sum(usage["completion_tokens"] for usage in answers),
    )
    wait_for(lambda: used() >= wanted)
    assert used() == wanted
    # Seconds follow the tokens; what a tenant is told is a moment older than what an admin is.
    wait_for(lambda: http.get("/v1/usage").json()["data"] == loraplex("usage", "t1"))

    loraplex("tenants", "change", "t1", "--max-tokens-per-minute", "2000")
    let_in = 0

    def refused():
        nonlocal let_in
        answer = ask()
        let_in += answer.status_code == 200
        return answer.status_code == 429

    began = time.monotonic()
    wait_for(refused)
    error = error_of(ask(), 429)
    assert error["code"] == "tokens_per_minute"
    # Two ingresses of 2,000 tokens each would have let in twice as many; before they knew, some.
    assert let_in <= 2000 / 45 * (1 + (time.monotonic() - began) / 60) + 30
    loraplex("tenants", "change", "t1", "--max-tokens-per-minute", "-1")
    wait_for(lambda: all(ask().status_code == 200 for _ in range(10)))


def test_retiring_ends_new_requests_only(http, loraplex):
    loraplex("adapters", "publish", "t1/gone", "two")
    body = {"model": "t1/gone", "prompt": "a", "max_tokens": 100, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        loraplex("adapters", "retire", "t1/gone")
        wait_for(lambda: http.post("/v1/completions", json=body).status_code == 404)
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_promote_and_roll_back_reach_every_ingress(http, loraplex, home):
    """Of 20 requests on connections of their own, each of two ingresses gets some. Each knows two
    polls of the registry later; `rest/test_adapter_routes.py` counts them."""
    spec = BackboneSpec.load(home / "model")
    digests = []
    for number in range(2):
        folder = write_adapter(home / "uploads" / str(number), lora_tensors(spec))
        digests.append(
            loraplex("adapters", "publish", "t1/turns", "--upload", str(folder))["version"]
        )

    def answering():
        with httpx.Client(base_url=http.base_url, headers=http.headers, timeout=60) as fresh:
            body = {"model": "t1/turns", "prompt": "a", "max_tokens": 1}
            answer = fresh.post("/v1/completions", json=body)
        return answer.headers.get("x-loraplex-adapter-version")

    wait_for(lambda: answering() == digests[1])
    for change, wanted in (
        (("rollback", "t1/turns", "--expect", digests[1]), digests[0]),
        (("promote", "t1/turns", digests[1][:12]), digests[1]),
    ):
        assert loraplex("adapters", *change)["digest"] == wanted
        everywhere = in_effect_s(lambda w=wanted: all(answering() == w for _ in range(20)))
        assert everywhere < EFFECTIVE_S
    report = loraplex("store", "sweep")
    assert report["removed"] == [] and report["unreadable"] == []


def test_a_canary_that_cannot_be_loaded_is_rolled_back(http, loraplex, home):
    """Its object has gone from the store. Two ingresses count, control decides."""
    torch.manual_seed(8)  # bytes of no other name, which may be loaded
    spec = BackboneSpec.load(home / "model")
    for name in ("steady", "broken"):
        write_adapter(home / "import" / name, lora_tensors(spec))
    steady = loraplex("adapters", "publish", "t1/gated", "steady")["version"]
    as_canary = ["--as", "canary", "--weight", "0.5"]
    broken = loraplex("adapters", "publish", "t1/gated", "broken", *as_canary)["version"]
    shutil.rmtree(home / "data/objects/adapters/t1" / broken)

    def alias():
        body = {"model": "t1/gated", "prompt": "hi", "max_tokens": 2}
        for _ in range(20):
            http.post("/v1/completions", json=body)
        return loraplex("adapters", "show", "t1/gated")["aliases"]["production"]

    wait_for(lambda: alias()["canary"] is None)
    found = alias()
    assert found["digest"] == steady and found["ended"][0]["digest"] == broken
    assert "canary gate: " in found["ended"][0]["why"]
    assert "object_missing" in found["ended"][0]["why"]


def test_retiring_now_ends_what_runs(http, loraplex, home):
    torch.manual_seed(7)  # bytes of no other name: what those serve runs on
    write_adapter(home / "import" / "urgent", lora_tensors(BackboneSpec.load(home / "model")))
    loraplex("adapters", "publish", "t1/urgent", "urgent", "--probe", "hi")
    body = {"model": "t1/urgent", "prompt": "a", "max_tokens": 4000, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        loraplex("adapters", "retire", "t1/urgent", "--now")
        rest = [line for line in lines if line]
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert error["code"] == "adapter_retired" and len(rest) < 3000
    assert http.post("/v1/completions", json=body).status_code == 404


def settled(counts, for_s=3.5):
    """What they are once they have not changed for longer than a count takes to be scraped."""
    found, since = counts(), time.monotonic()
    while time.monotonic() - since < for_s:
        time.sleep(0.5)
        if (now := counts()) != found:
            found, since = now, time.monotonic()
    return found


def test_prometheus_scrapes_the_service_and_every_panel_has_data(
    ray_local, url, keys, loraplex, home, project, free_port, tmp_path, collector
):
    """What Prometheus says of requests, tokens and placements is what was sent, and what a
    collector is told."""
    torch.manual_seed(11)
    for name in ("cold1", "cold2"):
        write_adapter(home / "import" / name, lora_tensors(BackboneSpec.load(home / "model")))
        loraplex("adapters", "publish", f"t1/{name}", name)
    with scraping([ray_local.metrics], tmp_path, project, free_port()) as prometheus:

        def total(of, where="", part=""):
            name = f"ray_{of.prometheus}{part}"
            found = prometheus.query(f"sum({name}{{{where}}})")
            return float(found[0]["value"][1]) if found else 0.0

        # What is not scraped yet sums up to nothing, too.
        prometheus.wait(
            lambda: total(i.REQUESTS) > 0.0 and total(i.TENANT_QUEUE, part="_count"), 120
        )
        prometheus.wait(lambda: total(i.QUEUE_REQUESTS, 'state="running"') == 0.0, 120)
        counts = {
            "answers": lambda: total(i.REQUESTS, 'status="200"'),
            "first tokens": lambda: total(i.TENANT_FIRST_TOKEN, 'le="+Inf"', "_bucket"),
            "completion": lambda: total(i.TOKENS, 'type="completion"'),
            "placements": lambda: total(i.PLACEMENTS),
            "rows": lambda: total(i.TENANT_QUEUE, part="_count"),
        }
        before = settled(lambda: {name: count() for name, count in counts.items()})
        models = ["org/tiny", "t1/one", "two", "cold1", "cold2"]
        sent = [*models * 4, "org/tiny"]
        for number, model in enumerate(sent):
            tenant = "t2" if number == len(sent) - 1 else "t1"
            body = {"model": model, "prompt": "a", "max_tokens": 5}
            answer = httpx.post(
                f"{url}/v1/completions", json=body, headers=bearer(keys[tenant]), timeout=60
            )
            assert answer.status_code == 200
            time.sleep(0.1)
        expected = dict.fromkeys(counts, len(sent)) | {"completion": 5 * len(sent)}
        deadline = time.monotonic() + 120
        while (grown := {n: count() - before[n] for n, count in counts.items()}) != expected:
            assert time.monotonic() < deadline, grown
            time.sleep(0.5)
        answers = counts["answers"]()
        collector.wait(lambda: collector.counted(i.REQUESTS.name, status="200") == answers)
        silent = []
        for board in boards(Queries("ray_", range="40s")):
            for panel in board.panels:
                for legend, query in panel.lines:
                    result = prometheus.query(re.sub(r"\$(tenant|adapter)", ".*", query))
                    if not any(row["value"][1] != "NaN" for row in result):
                        silent.append((board.uid, panel.title, legend, query))
        assert not silent


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


# Seen from outside -----------------------------------------------------------------------------
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_one_trace_of_a_cold_request_with_its_load(http, loraplex, collector):
    loraplex("adapters", "publish", "t1/cold", "cold")
    body = {"model": "t1/cold", "prompt": "a", "max_tokens": 5, "stream": True}
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    answer = http.post("/v1/completions", json=body, headers=headers).raise_for_status()
    last = {"POST /v1/completions", "decode"}
    collector.wait(lambda: last <= set(collector.of(TRACE)))
    spans = collector.of(TRACE)
    root = spans["POST /v1/completions"]
    assert root.parent == CALLER
    assert root.attributes["loraplex.request_id"] == answer.headers["x-request-id"]
    ids = {span.span_id for span in spans.values()}
    assert all(span.parent in ids for span in spans.values() if span is not root)
    above = {"route": root, "replica": root, "queue": spans["replica"], "decode": spans["replica"]}
    above |= {"prefill": spans["replica"], "adapter": spans["queue"]}
    above |= {f"adapter.{s}": spans["adapter"] for s in ("verify", "repack", "upload")}
    for name, parent in above.items():
        assert spans[name].parent == parent.span_id, name
        assert spans[name].start_ns <= spans[name].end_ns
    assert spans["route"].attributes["loraplex.route.reason"] == "owner"
    assert spans["adapter"].attributes["loraplex.from"] == "store"
    assert spans["decode"].attributes["loraplex.steps"] == 5
    order = ["tokenise", "route", "adapter.verify", "adapter.upload", "prefill", "decode"]
    ends = [spans[name].end_ns for name in order]
    assert ends == sorted(ends)
    # Whoever says nothing is not traced, with a ratio of 0.
    http.post("/v1/completions", json=body).raise_for_status()
    assert {span.trace_id for span in collector.spans} == {TRACE}


def logs():
    """All that Ray, and everything below it, has written: by file."""
    folder = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    return {f.name: f.read_text(errors="replace") for f in folder.rglob("*") if f.is_file()}


def lines(request_id=None):
    """Our JSON lines, those of one request alone."""
    found = []
    for text in logs().values():
        for line in text.splitlines():
            if line.startswith('{"time"'):
                found.append(json.loads(line))
    return [x for x in found if request_id in (None, x.get("request_id"))]


def test_log_lines_of_every_process_can_be_joined_by_the_request_s_id(http, loraplex, home):
    view = loraplex("adapters", "publish", "t1/lost", "lost")
    for file in (home / "data" / "objects").rglob(f"*{view['digest']}*/*"):
        file.unlink()
    body = {"model": "t1/lost", "prompt": "a", "max_tokens": 5}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 503, answer.text
    request_id = answer.headers["x-request-id"]
    wait_for(lambda: {x["role"] for x in lines(request_id)} == {"ingress", "replica"})
    told = lines(request_id)
    code = answer.json()["error"]["code"]
    version = {"tenant": "t1", "adapter": "t1/lost", "version": view["digest"]}
    for line in told:
        assert {k: line[k] for k in version} == version and line["code"] == code
    (ended,) = [x for x in told if x["message"] == "answered"]
    assert ended["status"] == 503 and ended["path"] == "/v1/completions"
    loads = [x for x in lines() if x.get("version") == view["digest"] and x["role"] == "loader"]
    failed = [x for x in loads if x["message"].startswith("loading")]
    assert failed and {x["code"] for x in failed} == {code}
    assert {x["role"] for x in lines()} >= {"ingress", "replica", "loader"}


def test_no_log_has_prompts_answers_or_keys_until_a_tenant_wants_it(
    http, client, loraplex, keys, admin_key
):
    secret = "xyzzy-plugh-" + "s" * 600
    messages = [{"role": "user", "content": secret}]

    def ask():
        answer = client.chat.completions.create(model="t1/one", messages=messages, max_tokens=6)
        body = {"model": "t1/one", "messages": messages, "max_tokens": 6, "stream": True}
        http.post("/v1/chat/completions", json=body).raise_for_status()
        refused = http.post("/v1/chat/completions", json={"messages": messages, "n": "xyzzy"})
        assert refused.status_code == 400
        return answer.choices[0].message.content

    said = ask()
    assert len(counted(said)) == 6
    wait_for(lambda: sum(x["message"] == "answered" for x in lines()) > 3)
    planted = ("xyzzy-plugh", said, *keys.values(), admin_key)
    for name, text in logs().items():
        assert not [word for word in planted if word in text], name
    loraplex("tenants", "change", "t1", "--log-content")

    def contents():
        ask()
        return [x for x in lines() if x["message"] == "content"]

    wait_for(contents)
    line = contents()[-1]
    assert line["prompt"] == messages and line["answers"] == [said] and line["tenant"] == "t1"
    loraplex("tenants", "change", "t1", "--no-log-content")


def test_top(url, admin_key, client):
    client.completions.create(model="t1/one", prompt="a", max_tokens=50)
    env = {"LORAPLEX_URL": url, "LORAPLEX_ADMIN_KEY": admin_key, "COLUMNS": "80"}
    top = ["top", "--once", "--interval", "0.2"]
    result = CliRunner().invoke(cli.app, top, env=env)
    assert result.exit_code == 0 and "2 of 2 replicas ready" in result.output
    told = json.loads(CliRunner().invoke(cli.app, [*top, "--json"], env=env).output)
    assert told["adapters"]["device"] >= 1 and len(told["replicas"]) == 2
    wait_for(lambda: "t1" in CliRunner().invoke(cli.app, top, env=env).output.split("tenant ")[1])
