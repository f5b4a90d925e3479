"""`loraplex adapters` against a real HTTP server."""

import hashlib
import json

from typer.testing import CliRunner

from deployments.command_line.cli import app
from deployments.ingress.ingress import create_app
from engine.errors import AdapterRejected
from tests.support.ingress import LocalServer
from tests.support.memory_control import publish


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


def test_a_rejected_adapter_says_why(loraplex, world):
    world.control.error = AdapterRejected("tensor x has shape [1], not [2]")
    assert "tensor x has shape" in loraplex("adapters", "publish", "t1/a", "f", code=1)
    assert world.registry.get("adapter/t1/a") is None


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
