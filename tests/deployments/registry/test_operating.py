"""What an operator does with a registry: name it, back it up, restore it, spread over hosts."""

from __future__ import annotations

import json
import secrets
import stat

import pytest
from typer.testing import CliRunner

from deployments.command_line.cli import app
from deployments.config import load
from deployments.config_file import ConfigError
from deployments.platform.hosts import check_here, check_hosts, home_node
from deployments.registry import open_registry
from deployments.registry.backup import back_up, bring_back
from deployments.registry.registry import ABSENT, Gone
from deployments.registry.schema import SCHEMA
from engine.errors import Conflict, InvalidRequest, LoraplexError, Unavailable


@pytest.fixture(params=["sqlite", "redis"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/registry.db"
    server = request.getfixturevalue("redis_server")
    return f"{server.url}?prefix=o{secrets.token_hex(4)}"


@pytest.fixture
def registry(url):
    registry = open_registry(url)
    for number in range(5):
        registry.put(f"x/{number}", {"n": number, "é": [None]}, ABSENT)
    registry.delete("x/3", None)
    yield registry
    registry.check()
    registry.close()


def contents(registry):
    return {e.key: e.value for e in registry.list("").entries}


def run(*words, code=0, env=None):
    result = CliRunner().invoke(app, [str(w) for w in words], env=env or {})
    assert result.exit_code == code, result.output
    return result.output


# Backup and restore ------------------------------------------------------------------------------
def test_what_was_backed_up_comes_back(url, registry, tmp_path):
    file = tmp_path / "registry.jsonl"
    before = contents(registry)
    assert "4 records are in" in run("registry", "backup", file, "--registry", url)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.glob("*.part")) == []
    since = registry.list("").rev
    stale = registry.put("x/0", {"n": 100}, None)
    registry.put("y", {}, ABSENT)
    said = run("registry", "restore", file, "--registry", url, code=1)
    assert "--replace" in said
    assert registry.get("y") is not None
    assert "4 records" in run("registry", "restore", file, "--registry", url, "--replace")
    assert contents(registry) == before
    assert registry.changes(since) == Gone()
    with pytest.raises(Conflict):
        registry.put("x/0", {"n": 101}, stale)


def test_a_backup_moves_a_registry_to_another_backend(registry, tmp_path):
    file = tmp_path / "registry.jsonl"
    back_up(registry, file, clock=lambda: 5.0)
    other = open_registry(f"sqlite://{tmp_path}/other.db")
    assert bring_back(other, file) == 4
    assert contents(other) == contents(registry)
    other.check()
    other.close()


def test_a_backup_is_of_one_moment(registry, tmp_path):
    """Changes made while it is read are in it whole, or not at all."""

    class Busy:
        def __getattr__(self, name):
            return getattr(registry, name)

        def list(self, prefix):
            listing = registry.list(prefix)
            registry.put("x/0", {"n": 50}, None)
            registry.delete("x/1", None)
            registry.put("x/9", {"n": 9}, ABSENT)
            return listing

    file = tmp_path / "registry.jsonl"
    assert back_up(Busy(), file, clock=lambda: 5.0) == 4
    after = contents(registry)
    registry.restore([])
    bring_back(registry, file)
    assert contents(registry) == after


def test_a_damaged_backup_changes_nothing(registry, tmp_path):
    file = tmp_path / "registry.jsonl"
    back_up(registry, file, clock=lambda: 5.0)
    before, lines = registry.list(""), file.read_bytes().splitlines(keepends=True)
    header = json.loads(lines[0])
    for damaged in (
        [],
        lines[:1],
        lines[:-1],
        lines[:2] + lines[3:],
        [lines[0], lines[1], *lines[1:]],
        [*lines[:-1], lines[-1][:-10]],
        [lines[0], lines[1].replace(b"0", b"1"), *lines[2:]],
        [b"hello\n"],
        [b"[1]\n", *lines[1:]],
        [json.dumps({**header, "format": 2}).encode() + b"\n", *lines[1:]],
        [b"\xff\xfe\n", *lines[1:]],
    ):
        file.write_bytes(b"".join(damaged))
        with pytest.raises(InvalidRequest, match="whole backup"):
            bring_back(registry, file, replace=True)
    with pytest.raises(InvalidRequest, match="can't be read"):
        bring_back(registry, tmp_path, replace=True)
    assert registry.list("") == before


def test_backups_of_other_releases(registry, tmp_path):
    file = tmp_path / "registry.jsonl"
    old = {"v": 1, "tenant": "acme", "name": "bot", "current": None, "versions": []}
    registry.restore([("adapter/acme/bot", old)])
    back_up(registry, file, clock=lambda: 5.0)
    rewrite_schema(file, 1)
    bring_back(registry, file, replace=True)
    assert registry.get("adapter/acme/bot").value["aliases"] == {}
    rewrite_schema(file, SCHEMA.version + 1)
    with pytest.raises(Unavailable, match="later one"):
        bring_back(registry, file, replace=True)


def rewrite_schema(file, schema):
    """As if another release had written the file."""
    import hashlib  # noqa: PLC0415

    lines = file.read_bytes().splitlines(keepends=True)
    header = {**json.loads(lines[0]), "schema": schema}
    lines[0] = json.dumps(header).encode() + b"\n"
    sha256 = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    end = {**json.loads(lines[-1]), "sha256": sha256}
    file.write_bytes(b"".join([*lines[:-1], json.dumps(end).encode() + b"\n"]))


def test_the_command_line_says_what_is_wrong(tmp_path):
    file = tmp_path / "f"
    assert "--config or --registry" in run("registry", "backup", file, code=2)
    assert "no known scheme" in run("registry", "backup", file, "--registry", "x://", code=1)
    assert not file.exists()


def test_a_backup_takes_the_place_of_nothing_unasked(url, registry, tmp_path):
    file = tmp_path / "registry.jsonl"
    file.write_text("mine")
    said = run("registry", "backup", file, "--registry", url, code=1)
    assert "--replace" in said and file.read_text() == "mine"
    run("registry", "backup", file, "--registry", url, "--replace")
    assert file.read_text() != "mine"
    away = tmp_path / "away" / "registry.jsonl"
    said = run("registry", "backup", away, "--registry", url, code=1)
    assert f"There is no folder {away.parent}." in said.replace("\n", " ")
    assert not away.parent.exists()


# Configuration -----------------------------------------------------------------------------------
def config(registry="", store="", **environ):
    values = {"data_dir": "/d", "base": {"path": "/m", "name": "tiny"}}
    return load({**values, "registry": registry, "store": store}, environ=environ)


def test_secrets_come_from_the_environment():
    found = config(
        "redis+sentinel://a,b/main",
        LORAPLEX_REGISTRY_USERNAME="ann",
        LORAPLEX_REGISTRY_PASSWORD="p/w",
        LORAPLEX_REGISTRY_SENTINEL_PASSWORD="s w",
    )
    assert found.registry_url == "redis+sentinel://ann:p%2Fw@a,b/main?sentinel_password=s%20w"
    assert "p%2Fw" not in repr(found) + str(found)
    assert config(LORAPLEX_REGISTRY_PASSWORD="x").registry_url.startswith("sqlite:///d/")


def test_a_registry_that_is_written_wrong_is_found_at_once():
    with pytest.raises(ConfigError, match="'verify' is no option"):
        config("rediss://host?verify=no")


def test_the_command_line_takes_the_password_from_the_environment(tmp_path):
    said = run(
        "registry",
        "backup",
        tmp_path / "f",
        "--registry",
        "redis://127.0.0.1:1/0?timeout_s=0.2",
        env={"LORAPLEX_REGISTRY_PASSWORD": "hunter2"},
        code=1,
    )
    assert "127.0.0.1:1/0" in said and "hunter2" not in said


@pytest.mark.parametrize(
    "registry, store, says",
    [
        ("", "s3://bucket", "registry is a file"),
        ("redis://h", "", "store is a folder"),
        ("redis://h", "file:///mnt/x", r"file:///folder\?shared=true"),
        ("redis://h", "file:///mnt/x?shared=false", "shared=true"),
    ],
)
def test_more_nodes_need_what_all_of_them_reach(registry, store, says):
    found = config(registry, store)
    check_hosts(found, 1)
    with pytest.raises(ConfigError, match=says) as told:
        check_hosts(found, 2)
    assert isinstance(told.value, LoraplexError) and "2 nodes" in told.value.message


def test_what_all_nodes_reach_is_good_for_any_number():
    check_hosts(config("redis://h", "s3://bucket/prefix"), 9)
    check_hosts(config("redis://h", "file:///mnt/x?shared=true"), 9)


def test_a_process_on_a_node_that_joined_later_says_why_it_cannot_start():
    """Files bind a service to the node that it was built on; servers bind it to none."""
    for embedded in (config("", "s3://bucket"), config("redis://h", "")):
        home = home_node(embedded, lambda: "node-a")
        assert home == "node-a"
        check_here(home, lambda: "node-a")
        with pytest.raises(ConfigError, match="joined later.*redis://.*s3://"):
            check_here(home, lambda: "node-b")
    free = home_node(config("redis://h", "s3://bucket/prefix"), lambda: "node-a")
    check_here(free, lambda: "node-b")
