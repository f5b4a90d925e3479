"""The command line against a real HTTP server, and the key that starts everything."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from deployments.command_line.cli import app
from deployments.control.sidecars import Sidecar, Sidecars
from deployments.ingress.ingress import create_app
from deployments.registry import open_registry
from deployments.registry.records import TenantRecord, key_key
from engine.errors import AdapterRejected
from tests.support.ingress import LocalServer
from tests.support.memory_control import publish, put_version, version_record


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


@pytest.fixture
def two(world):
    """t1/bot has two whole versions, the second in production."""
    digests = []
    for manifest in (b"one", b"two"):
        version = put_version(world.store, "t1", "bot", manifest)
        digests.append(version.ref.digest)
        publish(world.registry, "t1", "bot", digest=digests[-1])
    return digests


def test_promote_canary_and_rollback(loraplex, two):
    one, other = two
    assert f"@production stands for {one[:12]}" in loraplex("adapters", "rollback", "t1/bot")
    promote = ("adapters", "promote", "t1/bot")
    said = loraplex(*promote, other[:8], "--as", "canary", "--weight", "0.05")
    assert f"{other[:12]} gets 5.0% of t1/bot" in said
    assert f"{other[:12]} 5.0%" in loraplex("adapters", "list")
    assert "canary" in loraplex("adapters", "show", "t1/bot")
    assert "has no canary" in loraplex("adapters", "rollback", "t1/bot", "--as", "canary")
    assert "stands for nothing" in loraplex(
        *promote, one, "--as", "beta", "--expect", other, code=1
    )
    view = json.loads(loraplex(*promote, other, "--as", "beta", "--json"))
    assert view["aliases"]["beta"]["digest"] == other
    assert "Removed t1/bot@beta" in loraplex("adapters", "remove-alias", "t1/bot", "beta")
    assert "is not whole" in loraplex("adapters", "rollback", "t1/bot", code=1)


def test_retire_one_version(loraplex, world, two):
    retire = ("adapters", "retire", "t1/bot", "--version")
    assert "Promote another version" in loraplex(*retire, two[1][:8], code=1)
    assert f"Retired {two[0][:8]} of t1/bot" in loraplex(*retire, two[0][:8], "--now")
    assert [now for _, now in world.model.drops] == [True]


def test_an_upload_that_is_too_large_is_not_sent(world, tmp_path):
    section = world.config.publish.model_copy(update={"max_upload_bytes": 1000})
    world.config = world.config.model_copy(update={"publish": section})
    (tmp_path / "adapter_config.json").write_text("{}")
    with (tmp_path / "adapter_model.safetensors").open("wb") as file:
        file.truncate(1001)
    asked = []

    async def count(scope, receive, send):
        asked.append((scope["type"], scope.get("path")))
        await app_of_world(scope, receive, send)

    app_of_world = create_app(world.parts())
    with LocalServer(count) as url:
        env = {"LORAPLEX_URL": url, "LORAPLEX_ADMIN_KEY": world.keys["admin"]}
        words = ["adapters", "publish", "t2/new", "--upload", str(tmp_path)]
        result = CliRunner().invoke(app, words, env=env)
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "1001 bytes" in said and "takes 1000" in said and "lower rank" in said
    assert [path for kind, path in asked if kind == "http"] == ["/v1/adapters/limits"]


def test_publish_from_everywhere(loraplex, world, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x" * 100_000)
    (tmp_path / "optimizer.pt").write_bytes(b"y" * 1000)
    (tmp_path / "added_tokens.json").write_text("{}")
    probes = tmp_path / "probes.json"
    probes.write_text(json.dumps([{"prompt": "again", "expect": "two"}]))
    publish = ("adapters", "publish", "t2/new")
    said = loraplex(*publish, "--upload", str(tmp_path), "--probe", "hi", "--probes", str(probes))
    assert "'hi' -> 'one0 two'" in said and "'again' -> 'one0 two'" in said
    prefix = f"uploads/t2/{world.control.orders[-1].source.upload}"
    sizes = {
        key.removeprefix(f"{prefix}/"): world.store.size(key) for key in world.store.list(prefix)
    }
    assert sizes == {
        "adapter_config.json": 2,
        "adapter_model.safetensors": 100_000,
        "added_tokens.json": 2,
    }
    view = json.loads(loraplex(*publish, "--prefix", "run-7", "--no-promote", "--json"))
    assert world.control.orders[-1].source.prefix == "run-7" and view["version"] != view["digest"]
    view = json.loads(loraplex(*publish, "x", "--as", "canary", "--weight", "0.1", "--json"))
    assert view["aliases"]["production"]["canary"] == view["version"]
    for wrong in ([], ["x", "--prefix", "y"], ["--upload", str(probes)]):
        loraplex(*publish, *wrong, code=2)
    assert "no adapter_config.json" in loraplex(
        *publish, "--upload", str(tmp_path / "data"), code=2
    )
    loraplex(*publish, "x", "--probes", str(tmp_path / "nosuch.json"), code=2)
    assert "promote" in loraplex(*publish, "x", "--as", "beta", "--no-promote", code=1)


def test_download(loraplex, two, tmp_path):
    folder = tmp_path / "fetched"
    loraplex("adapters", "download", "t1/bot", str(folder))
    assert (folder / "adapter_model.safetensors").read_bytes() == b"t" * 4096
    assert sorted(p.name for p in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loraplex("adapters", "download", "t1/bot", str(folder), "--version", two[0][:8])
    said = loraplex(
        "adapters", "download", "t1/bot", str(tmp_path / "x"), "--version", "b" * 8, code=1
    )
    assert "no version" in said
    assert list((tmp_path / "x").iterdir()) == []


def test_lists_come_in_pages_or_whole(loraplex, world):
    for number in range(3):
        publish(world.registry, "t2", f"a{number}")
    assert len(json.loads(loraplex("adapters", "list", "--json"))) == 4
    page = json.loads(loraplex("adapters", "list", "--limit", "2", "--json"))
    assert [a["model"] for a in page] == ["t1/bot", "t2/a0"]
    rest = json.loads(loraplex("adapters", "list", "--after", "t2/a0", "--json"))
    assert [a["model"] for a in rest] == ["t2/a1", "t2/a2"]
    assert [t["id"] for t in json.loads(loraplex("tenants", "list", "--limit", "1", "--json"))] == [
        "t1"
    ]


def test_sweep(loraplex):
    said = loraplex("store", "sweep", "--dry-run")
    assert "Would remove 1" in said and "orphan" in said and "2 more may go" in said
    assert json.loads(loraplex("store", "sweep", "--json"))["kept_young"] == 2


def test_a_tenant_is_changed_suspended_and_resumed(loraplex, world):
    change = ("tenants", "change", "t1")
    said = loraplex(*change, "--max-rank", "16", "--allowed-ranks", "8,16", "--self-publish")
    assert "Changed max_rank, allowed_ranks, self_publish of t1" in said
    assert not world.tenants.get("t1").log_content
    loraplex(*change, "--log-content")
    record = world.tenants.get("t1")
    assert record.log_content
    assert (record.max_rank, record.allowed_ranks, record.self_publish) == (16, (8, 16), True)
    listed = " ".join(loraplex("tenants", "list", env={"COLUMNS": "300"}).split())
    assert "max_rank 16, allowed_ranks [8, 16]" in listed and "active, self_publish" in listed
    loraplex(*change, "--max-rank", "-1", "--allowed-ranks", "any", "--no-self-publish")
    loraplex(*change, "--no-log-content")
    record = world.tenants.get("t1")
    assert record.flags == ()
    assert (record.max_rank, record.allowed_ranks, record.self_publish) == (None, (), False)
    assert "Give what is to change" in loraplex(*change, code=2)
    assert "no ranks" in loraplex(*change, "--allowed-ranks", "a,b", code=2)
    loraplex("tenants", "suspend", "t1")
    assert world.tenants.get("t1").suspended and "suspended" in loraplex("tenants", "list")
    loraplex("tenants", "resume", "t1")
    assert not world.tenants.get("t1").suspended


def test_rebuild(tmp_path, two, world):
    def run(*words, code=0):
        result = CliRunner().invoke(app, ["registry", "rebuild", *words])
        assert result.exit_code == code, result.output
        return result.output

    new = ("--registry", f"sqlite://{tmp_path}/new.db")
    sidecars = Sidecars(world.store)
    for digest in two:
        sidecars.put(Sidecar(version_record("t1", "bot", digest), 7.0, 8.0))
    said = run(*new, "--store", world.config.store_url)
    assert "Restored 1 adapters with 2 versions" in said
    assert "loraplex tenants create t1" in said
    again = json.loads(
        run(*new, "--store", world.config.store_url, "--dry-run", "--json").partition("note:")[0]
    )
    assert again["kept"] == ["t1/bot"] and again["tenants"] == ["t1"]
    run(*new, code=2)
    run("--store", "file:///x", code=2)


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


@pytest.mark.parametrize(
    ("words", "code", "said", "param"),
    [
        (["adapters", "show", "t1/nosuch"], 1, "not_found", "name"),
        (["tenants", "create", "t9", "--weight", "0"], 1, "invalid_request", "weight"),
        (["adapters", "show", "bot"], 2, "wrong_usage", None),
        (["tenants", "change", "t1"], 2, "wrong_usage", None),
        (["tenants", "change", "t1", "--nosuch"], 2, "wrong_usage", None),
        (["--url", "http://127.0.0.1:1", "tenants", "list"], 3, "unreachable", None),
    ],
)
def test_with_json_an_error_is_json_too(loraplex, words, code, said, param):
    error = json.loads(loraplex(*words, "--json", code=code))["error"]
    assert (error["code"], error["param"]) == (said, param)
    assert error["message"] and error["type"]


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


def test_warm_and_pin(loraplex, world):
    world.model.replies = [{"slot": 0, "ready": True}]
    world.model.answers = [{"slot": 0, "tier": "device", "why": None}]
    assert "device on replica 0" in loraplex("adapters", "prefetch", "t1/bot")
    world.model.answers = [{"slot": 0, "tier": "failed", "why": "bucket is gone"}]
    assert "bucket is gone" in loraplex("adapters", "prefetch", "t1/bot", code=1)
    world.model.answers = [{"slot": 0, "tier": "loading", "why": None}]
    said = loraplex("adapters", "prefetch", "t1/bot", "--replicas", "all", "--wait", "0.1", code=1)
    assert "not there on every replica" in said
    assert "Pinned t1/bot" in loraplex("adapters", "pin", "t1/bot", "--tier", "host")
    pins = json.loads(loraplex("adapters", "pins", "--json"))
    assert [(p["model"], p["tier"], p["replicas"]) for p in pins] == [("t1/bot", "host", 1)]
    assert "Unpinned t1/bot" in loraplex("adapters", "unpin", "t1/bot")
    loraplex("adapters", "unpin", "t1/bot", code=1)
    loraplex("adapters", "pin", "t1/bot", "--tier", "disk", code=2)
    loraplex("adapters", "pin", "t1/bot", "--replicas", "none", code=2)


def test_names_are_never_cut(loraplex, world):
    name = "a" * 40 + "." + "b" * 22
    world.tenants.create(TenantRecord(name, max_rank=16, allowed_ranks=(8, 16)))
    told = {"epoch": "life", "number": 1, "usage": {name: {"num_requests": 4}}}
    world.control.ledger.read([told], 0.0)
    for words in (("tenants", "list"), ("usage",)):
        assert name in loraplex(*words, env={"COLUMNS": "80"}), "it goes to a file"
        narrow = loraplex(*words, env={"COLUMNS": "80", "TTY_COMPATIBLE": "1"})
        assert name not in narrow and "\u2026" not in narrow


def test_an_argument_that_is_not_utf8_is_named(loraplex, world):
    publish = ("adapters", "publish", "t2/new", "x", "--probe", "a\udcff")
    assert "argument a\\xff is not UTF-8" in loraplex(*publish, code=2)
    error = json.loads(loraplex(*publish, "--json", code=2))["error"]
    assert error["code"] == "wrong_usage" and world.control.orders == []
