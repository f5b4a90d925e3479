"""deployments/cluster.yaml on a Ray cluster of three nodes, with a real Redis and a real S3.

Only settings that the file itself tells to change are changed, and those that fit three nodes onto
one machine without a GPU: device, dtype, sizes, port and proxy_location.
"""

from __future__ import annotations

import json
import os
import shutil
import time

import httpx
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from tokenizers import Tokenizer
from typer.testing import CliRunner

from deployments.changes.tenants import Tenants
from deployments.command_line import cli
from deployments.platform.ray_settings import RAY_SETTINGS
from deployments.registry import open_registry
from tests.support import redis_servers, s3_server
from tests.support.ingress import bearer, write_model
from tests.support.ray_cluster import ray_cluster, write_serve_config
from tests.support.tiny_models import make_adapter, make_model

pytestmark = [pytest.mark.ray, pytest.mark.slow]
TURNS = 20
"""Requests on connections of their own, so that each of two ingresses gets some."""


def test_the_tracked_file_is_a_serve_config_that_names_rays_settings(project):
    text = (project / "deployments" / "cluster.yaml").read_text()
    config = ServeDeploySchema.model_validate(yaml.safe_load(text))
    (application,) = config.applications
    scaling = application.deployments[0].autoscaling_config
    assert scaling["policy"]["policy_function"] == "router.autoscaling:SlotPressurePolicy"
    assert all(f"{name}={value}" in text for name, value in RAY_SETTINGS.items())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model with a tokenizer, and two adapters of it: `one` and `two`."""
    home = tmp_path_factory.mktemp("cluster")
    made = make_model(home, "llama")
    tokens = write_model(home / "tokens", num_tokens=384)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokens / name, made.folder / name)
    for name in ("one", "two"):
        lora = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"], "lora_alpha": 32}
        made.oracles[name] = make_adapter(made.oracles[None], home / name, lora)
    return made


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with redis_servers.server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def settings(model, redis, s3, free_port):
    """What is changed of the tracked file."""
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": free_port()},
        "args": {
            "data_dir": str(model.folder.parent / "data"),
            "registry": redis.url,
            "store": s3.url(s3_server.new_prefix()),
            "base": {"path": str(model.folder), "name": "tiny", "accepts": [""]},
            "replica": {
                "device": "cpu",
                "dtype": "float32",
                "num_cpus": 1,
                "threads": 1,
                "max_model_len": 128,
                "memory": {"arena_bytes": 16 << 20, "host_bytes": 8 << 20, "disk_bytes": 1 << 20},
                "shutdown_s": 2,
            },
            "ingress": {"num_cpus": 0},
        },
        "deployment": {"autoscaling_config": {"max_replicas": 2}},
    }


@pytest.fixture(scope="module")
def cluster(project):
    with ray_cluster(project, s3_server.ENVIRONMENT) as cluster:
        cluster.add_node(num_cpus=1)
        yield cluster


@pytest.fixture(scope="module")
def loraplex(settings):
    """Runs a command against the service."""
    registry = open_registry(settings["args"]["registry"])
    key = Tenants(registry, clock=time.time, random_bytes=os.urandom).create_admin_key()
    registry.close()
    port = settings["http_options"]["port"]
    env = {"LORAPLEX_URL": f"http://127.0.0.1:{port}", "LORAPLEX_ADMIN_KEY": key}

    def run(*words):
        result = CliRunner().invoke(cli.app, [*words, "--json"], env=env)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    return run


def until(condition, within_s=120.0):
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < within_s, "not within the time"
        time.sleep(0.1)
    return found


def tried_again(ask, most=2, pause_s=2.0):
    """The answer of `ask`, tried again after a 5xx as often as OpenAI's client does."""
    answer = ask()
    for _ in range(most):
        if answer.status_code < 500:
            break
        time.sleep(pause_s)
        answer = ask()
    return answer


def num_ready(url):
    try:
        answer = httpx.get(f"{url}/ready", timeout=10)
    except httpx.HTTPError:
        return 0
    return answer.json()["replicas"] if answer.status_code == 200 else 0


def embedded(settings, registry="", **more):
    """The same with files of one machine in the place of servers."""
    return {**settings, "args": {**settings["args"], "registry": registry, "store": "", **more}}


@pytest.fixture(scope="module")
def deploy(project, cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")

    def run(settings):
        tracked = project / "deployments" / "cluster.yaml"
        cluster.deploy(write_serve_config(tracked, settings, folder / "serve.yaml"))

    return run


def test_files_of_one_machine_are_refused_once_there_are_more(cluster, deploy, settings):
    """On one node they serve. A replica that a node which joined later is to start says why it
    can't, and the others serve on; with more nodes, a deployment is refused at once."""
    url = f"http://127.0.0.1:{settings['http_options']['port']}"
    deploy(embedded(settings))
    until(lambda: num_ready(url) == 1)  # of two: the node has room for one
    cluster.add_node(num_cpus=1)
    told = next(said for said in map(json.dumps, cluster.statuses()) if "joined later" in said)
    assert "registry: redis://" in told
    assert num_ready(url) == 1
    deploy(embedded(settings, base={"path": settings["args"]["base"]["path"], "name": "other"}))
    told = next(said for said in cluster.statuses() if said["status"] == "DEPLOY_FAILED")
    assert "Ray has 2 nodes, and the registry is a file of one of them" in told["message"]


def test_it_publishes_promotes_and_answers_on_though_a_node_is_lost(
    cluster, deploy, settings, model, loraplex
):
    url = f"http://127.0.0.1:{settings['http_options']['port']}"
    while len(cluster.nodes) < 2:
        cluster.add_node(num_cpus=1)
    deploy(settings)
    until(lambda: num_ready(url) == 2)
    key = loraplex("tenants", "create", "acme")["key"]
    versions = [
        loraplex("adapters", "publish", "acme/bot", "--upload", str(model.folder.parent / name))[
            "version"
        ]
        for name in ("one", "two")
    ]
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))

    def greedy(adapter):
        ids = tokenizer.encode("hello").ids
        answer = []
        for _ in range(6):
            answer.append(int(model.logits(adapter, ids + answer)[-1].argmax()))
        return tokenizer.decode(answer, skip_special_tokens=True)

    def ask(name="acme/bot"):
        with httpx.Client(base_url=url, headers=bearer(key), timeout=60) as fresh:
            body = {"model": name, "prompt": "hello", "max_tokens": 6, "temperature": 0}
            answer = fresh.post("/v1/completions", json=body)
        return answer

    def said(answer=None):
        answer = ask() if answer is None else answer
        assert answer.status_code == 200, answer.text
        return (
            answer.headers["x-loraplex-adapter-version"],
            answer.json()["choices"][0]["text"],
        )

    one, two = (
        (version, greedy(name)) for version, name in zip(versions, ("one", "two"), strict=True)
    )
    until(lambda: all(said() == two for _ in range(TURNS)))
    assert ask("tiny").json()["choices"][0]["text"] == greedy(None)
    loraplex("adapters", "promote", "acme/bot", versions[0])
    until(lambda: all(said() == one for _ in range(TURNS)))
    assert len({greedy(name) for name in (None, "one", "two")}) == 3

    cluster.lose(cluster.nodes[0])
    # What was on its way there fails, of ours or (its ingress) of Ray's proxy; a client that tries
    # again, as OpenAI's does, is answered.
    answers = [tried_again(ask) for _ in range(TURNS)]
    assert {said(answer) for answer in answers} == {one}
    cluster.add_node(num_cpus=1)
    until(lambda: num_ready(url) == 2)
    loraplex("adapters", "rollback", "acme/bot")
    assert tried_again(ask).status_code == 200
    until(lambda: all(said() == two for _ in range(TURNS)))
