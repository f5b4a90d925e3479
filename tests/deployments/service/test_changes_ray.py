"""What is changed through one ingress and control (keys, limits, versions) reaches all."""

import json
import shutil
import time

import httpx
import pytest
import torch

from engine.model.spec import BackboneSpec
from tests.support.asked_service import wait_for
from tests.support.ingress import bearer, error_of
from tests.support.peft_folders import lora_tensors, write_adapter

pytestmark = [pytest.mark.ray, pytest.mark.slow]
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
    answers = []

    def refused():
        answers.append(ask())
        return answers[-1].status_code == 429

    began = time.monotonic()
    wait_for(refused)
    # Of the one that was refused: the bucket fills again meanwhile.
    assert error_of(answers[-1], 429)["code"] == "tokens_per_minute"
    # Two ingresses of 2,000 tokens each would have let in twice as many; before they knew, some.
    let_in = len(answers) - 1
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
