"""The command line against a real HTTP server, and the key that starts everything."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from deployments.cli import app
from deployments.ingress import create_app
from deployments.registry import open_registry
from deployments.registry.records import key_key
from engine.errors import AdapterRejected
from tests.support.ingress import LocalServer
from tests.support.memory_control import publish


@pytest.fixture
def loraplex(world):
    """Runs one command line; asserts its exit code; answers what it said. below: a path that
    LORAPLEX_URL ends in."""
    with LocalServer(create_app(world.parts())) as url:

        def run(*words, code=0, env=None, below=""):
            key = world.keys["admin"]
            env = {"LORAPLEX_URL": url + below, "LORAPLEX_ADMIN_KEY": key, **(env or {})}
            result = CliRunner().invoke(app, list(words), env=env)
            assert result.exit_code == code, result.output
            return result.output

        yield run


def test_publish_list_show_retire(loraplex, world):
    stored = hashlib.sha256(b"some/folder").hexdigest()
    said = loraplex("adapters", "publish", "t2/new", "some/folder")
    assert f"Published t2/new as {stored[:12]}" in said
    world.model.replies = [
        {"slot": 0, "residency": {"device": ["t1/" + "a" * 64]}},
        {"slot": 1, "residency": {}, "failed": {f"t2/{stored}": "bucket is gone"}},
    ]
    table = loraplex("adapters", "list")
    assert "t1/bot" in table
    assert "t2/new" in table
    assert "t2/new" not in loraplex("adapters", "list", "--tenant", "t1")
    found = {a["model"]: a for a in json.loads(loraplex("adapters", "list", "--json"))}
    assert found["t1/bot"]["status"] == "resident"
    assert found["t1/bot"]["replicas"] == [{"slot": 0, "tier": "device", "why": None}]
    assert found["t2/new"]["status"] == "failed"
    said = loraplex("adapters", "show", "t2/new")
    assert "failed on replica 1" in said
    assert "bucket is gone" in said
    assert "Retired t2/new" in loraplex("adapters", "retire", "t2/new")
    assert json.loads(loraplex("adapters", "show", "t2/new", "--json"))["status"] == "retired"


def test_tenants(loraplex, world):
    said = loraplex("tenants", "create", "t3", "--weight", "2", "--max-concurrent", "7")
    key = said.split()[-1]
    assert key.startswith("lp-")
    assert world.registry.get(key_key(key)).value["tenant"] == "t3"
    found = {t["id"]: t for t in json.loads(loraplex("tenants", "list", "--json"))}
    assert (found["t3"]["weight"], found["t3"]["max_concurrent"]) == (2.0, 7)
    assert found["t3"]["keys"] == [key[:7] + "..."]
    assert key not in loraplex("tenants", "list")
    new = loraplex("tenants", "rotate-key", "t3").split()[-1]
    assert world.registry.get(key_key(key)).value["revoked_s"] is not None
    assert world.registry.get(key_key(new)).value["revoked_s"] is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["adapters", "show", "t1/nosuch"], 1, "no adapter t1/nosuch"),
        (["adapters", "retire", "t1/nosuch"], 1, "no adapter t1/nosuch"),
        (["adapters", "show", "bot"], 2, "TENANT/NAME"),
        (["adapters", "show", "t1/b?x"], 1, "is not a name"),
        (["tenants", "create", "t1"], 1, "exists already"),
        (["tenants", "create", "T1"], 1, "is not a name"),
        (["tenants", "create", "t9", "--weight", "0"], 1, "weight"),
        (["tenants", "create", "t9", "--weight", "nan"], 2, "can't be sent"),
        (["tenants", "rotate-key", "nosuch"], 1, "no tenant nosuch"),
        (["adapters", "list", "--nosuch"], 2, "nosuch"),
    ],
)
def test_refusals_are_clear(loraplex, words, code, said):
    assert said in loraplex(*words, code=code)


def test_a_rejected_adapter_says_why(loraplex, world):
    world.control.error = AdapterRejected("tensor x has shape [1], not [2]")
    assert "tensor x has shape" in loraplex("adapters", "publish", "t1/a", "f", code=1)
    assert world.registry.get("adapter/t1/a") is None


def test_keys_and_urls_that_do_not_work(loraplex, world):
    assert "Incorrect API key" in loraplex("--admin-key", "lp-no", "tenants", "list", code=1)
    assert "needs an admin key" in loraplex(
        "--admin-key", world.keys["t1"], "tenants", "list", code=1
    )
    assert "LORAPLEX_ADMIN_KEY" in loraplex(
        "tenants", "list", code=2, env={"LORAPLEX_ADMIN_KEY": ""}
    )
    for url in ("http://127.0.0.1:1", "nonsense", "http://["):
        loraplex("--url", url, "tenants", "list", code=3)


@pytest.mark.parametrize("below", ["/", "/v1", "/v1/"])
def test_the_url_may_be_the_one_that_openai_clients_take(loraplex, below):
    assert "t1/bot" in loraplex("adapters", "list", below=below)


def test_bootstrap_makes_the_first_admin_key_only(tmp_path):
    url = f"sqlite://{tmp_path}/registry.db"

    def run(*words):
        return CliRunner().invoke(app, ["bootstrap", *words])

    made = run("--registry", url, "--json")
    key = json.loads(made.output)["key"]
    registry = open_registry(url)
    assert registry.get(key_key(key)).value["role"] == "admin"
    registry.close()
    assert run("--registry", url).exit_code == 1
    assert run("--registry", url, "--another").exit_code == 0
    assert run().exit_code == 2
    assert run("--registry", "ftp://x").exit_code == 1
    file = tmp_path / "service.yaml"
    file.write_text("data_dir: data\nbase: {path: m, name: x}\n")
    assert run("--config", str(file)).exit_code == 0
    assert (tmp_path / "data/registry.db").exists()


def test_values_are_shown_as_they_are(loraplex, world):
    publish(world.registry, "t1", "odd", by="[red]who[/red]")
    assert "[red]who[/red]" in loraplex("adapters", "show", "t1/odd")
