"""The whole service on a local Ray, its replicas on the fake device: one for each file here."""

import json
import time

import httpx
import openai
import pytest
import torch
from ray import serve
from typer.testing import CliRunner

from deployments.app import build
from deployments.changes.tenants import Tenants
from deployments.command_line import cli
from deployments.registry import open_registry
from engine.model.spec import BackboneSpec
from tests.support.ingress import bearer, write_model
from tests.support.otlp_receiver import receiving
from tests.support.peft_folders import BASE_NAME, lora_tensors, write_adapter

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
