"""Sweeping, rebuilding, and the key that starts everything."""

import json

from typer.testing import CliRunner

from deployments.command_line.cli import app
from deployments.control.sidecars import Sidecar, Sidecars
from deployments.registry import open_registry
from deployments.registry.records import key_key
from tests.support.memory_control import version_record


def test_sweep(loraplex):
    said = loraplex("store", "sweep", "--dry-run")
    assert "Would remove 1" in said and "orphan" in said and "2 more may go" in said
    assert json.loads(loraplex("store", "sweep", "--json"))["kept_young"] == 2


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
