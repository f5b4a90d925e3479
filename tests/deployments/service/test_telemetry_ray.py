"""The service seen from outside: its traces, its logs, `top`, and what Prometheus scrapes."""

import json
import re
import time
from pathlib import Path

import httpx
import pytest
import ray
import torch
from typer.testing import CliRunner

from deployments.command_line import cli
from deployments.telemetry import instruments as i
from deployments.telemetry.boards import boards
from deployments.telemetry.queries import Queries
from engine.model.spec import BackboneSpec
from tests.support.asked_service import counted, wait_for
from tests.support.ingress import bearer
from tests.support.peft_folders import lora_tensors, write_adapter
from tests.support.prometheus import scraping

pytestmark = [pytest.mark.ray, pytest.mark.slow]
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
