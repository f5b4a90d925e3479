"""`loraplex doctor` looks at real servers and folders, leaves nothing, and says what it saw."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import CliRunner

from deployments.changes.tenants import Tenants
from deployments.command_line import cli
from deployments.config import load
from deployments.doctor.backend_probes import look_at_registry, look_at_store
from deployments.doctor.backends import StoreFacts
from deployments.doctor.findings import Level
from deployments.doctor.probes import (
    machine_limits,
    packages,
    port_holder,
    ray_cluster,
    read_folder,
)
from deployments.registry import open_registry
from deployments.registry.schema import SCHEMA
from engine.adapters.store import open_store
from tests.support import redis_servers, s3_server
from tests.support.fault_proxy import Fault
from tests.support.ingress import write_model
from tests.support.tiny_models import make_model


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("doctor")
    folder = make_model(home, "llama").folder
    tokens = write_model(home / "tokens", num_tokens=384)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokens / name).read_bytes())
    (home / "import").mkdir()
    return home


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with redis_servers.server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def values(home, **changes):
    memory = {"arena_bytes": 16 << 20, "host_bytes": 8 << 20, "disk_bytes": 1 << 20}
    return {
        "data_dir": str(home / "data"),
        "import_root": str(home / "import"),
        "base": {"path": str(home / "base"), "name": "tiny"},
        "replica": {"threads": 1, "max_model_len": 128, "memory": memory},
        **changes,
    }


def serve_config(tmp_path, port, **settings):
    """A Serve config file of these settings."""
    application = {"import_path": "deployments.app:build", "args": settings}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump({"http_options": {"port": port}, "applications": [application]}))
    return path


def doctor(path, code, key=""):
    words = ["doctor", "--json", *(["--config", str(path)] if path else [])]
    result = CliRunner().invoke(cli.app, words, env={"LORAPLEX_ADMIN_KEY": key})
    assert result.exit_code == code, result.output
    said = json.loads(result.output)
    return said["status"], {f["subject"]: f for f in said["findings"]}


def admin_key(url):
    registry = open_registry(url)
    key = Tenants(registry, clock=lambda: 1.0, random_bytes=os.urandom).create_admin_key()
    registry.close()
    return key


def test_all_is_well_with_redis_and_s3(home, tmp_path, redis, s3, free_port):
    prefix = s3_server.new_prefix()
    settings = values(home, registry=redis.url, store=s3.url(prefix))
    key = admin_key(redis.url)
    opened = open_registry(redis.url)
    before = opened.list("").entries
    status, found = doctor(serve_config(tmp_path, free_port(), **settings), 0, key)
    assert status == "warning"  # of one server without a replica and without an append-only file
    bad = {name for name, f in found.items() if f["level"] == "warning"}
    assert bad == {"redis replicas", "redis persistence", "ray settings"}
    assert all(bool(f["remedy"]) == (f["level"] != "ok") for f in found.values())
    assert opened.list("").entries == before
    opened.close()
    assert s3.store(prefix).list("") == []
    assert not (home / "data").exists()


def test_failures_are_lines_with_remedies_and_an_exit_code(home, tmp_path, free_port):
    gone = f"redis://127.0.0.1:{free_port()}/0"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = serve_config(
            tmp_path,
            port,
            **values(
                home,
                registry=gone,
                store=f"s3://nowhere/x?endpoint=http://127.0.0.1:{free_port()}",
                import_root=str(home / "missing"),
            ),
        )
        result = CliRunner().invoke(cli.app, ["doctor", "--config", str(path)])
    assert result.exit_code == 1
    failures = [line for line in result.output.splitlines() if line.startswith("failure")]
    subjects = [line.split("  ")[1].strip() for line in failures]
    assert subjects == [f"port {port}", "registry", "store put", "import root"]
    assert all(" -> " in line for line in failures)


def test_a_configuration_that_cannot_be_read_is_a_finding(tmp_path):
    path = tmp_path / "loraplex.yaml"
    path.write_text("data_dirr: x")
    status, found = doctor(path, 1)
    assert status == "failure" and "data_dirr" in found["configuration"]["said"]
    assert "configuration" in doctor(tmp_path / "missing.yaml", 1)[1]


def test_without_a_configuration_the_machine_alone_is_looked_at():
    _, found = doctor(None, 0)
    assert {"python", "torch", "triton", "ray", "open files", "port 8000"} <= set(found)
    assert "registry" not in found


def test_what_is_installed_is_known():
    found = {p.name: p for p in packages()}
    assert found["ray"].found is not None and "<2.61" in found["ray"].spec
    assert "pytest" not in found  # of an extra
    limits = machine_limits()
    assert limits.memory_bytes > 0 and limits.open_files[0] <= limits.open_files[1]


def test_a_port_of_another_program():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert port_holder(server.getsockname()[1]) not in ("", "loraplex")


def test_a_folder_that_is_none(tmp_path):
    assert read_folder(tmp_path).problem == ""
    assert "no folder" in read_folder(tmp_path / "x").problem


# Registries ---------------------------------------------------------------------------------------
def test_a_file_that_is_not_there_is_not_made(tmp_path):
    facts = look_at_registry(f"sqlite://{tmp_path}/data/registry.db", "", "w")
    assert (facts.problem, facts.schema) == ("", None)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    facts = look_at_registry(f"sqlite://{tmp_path}/file/registry.db", "", "w")
    assert "can't be written" in facts.problem


def test_an_older_schema_is_told_and_not_migrated(tmp_path):
    url = f"sqlite://{tmp_path}/registry.db"
    key = admin_key(url)
    good = look_at_registry(url, key, "w")
    assert (good.schema, good.num_admin_keys, good.key_is_good) == (SCHEMA.version, 1, True)
    assert look_at_registry(url, "lp-other", "w").key_is_good is False
    database = sqlite3.connect(tmp_path / "registry.db")
    database.execute(f"PRAGMA user_version = {SCHEMA.version - 1}")
    database.commit()
    assert look_at_registry(url, key, "w").schema == SCHEMA.version - 1
    assert database.execute("PRAGMA user_version").fetchone()[0] == SCHEMA.version - 1
    database.close()


def test_a_damaged_file_is_a_problem(tmp_path):
    (tmp_path / "registry.db").write_bytes(b"no database" * 1000)
    assert "database" in look_at_registry(f"sqlite://{tmp_path}/registry.db", "", "w").problem


@pytest.mark.parametrize(
    "setting, value, subject",
    [("maxmemory-policy", "allkeys-lru", "problem"), ("min-replicas-to-write", "1", "write")],
)
def test_a_redis_that_drops_or_takes_no_records(redis, setting, value, subject):
    operator = redis.client()
    before = operator.config_get(setting)[setting]
    operator.config_set(setting, value)
    try:
        facts = look_at_registry(redis.url, "", "w")
    finally:
        operator.config_set(setting, before)
    assert (facts.problem if subject == "problem" else facts.problem + facts.write_problem) != ""
    assert facts.redis is not None and facts.redis.version


# Stores -------------------------------------------------------------------------------------------
def clock():
    return datetime.now(UTC)


@pytest.mark.parametrize(
    "fault, method, step",
    [
        (Fault(answer=(403, "AccessDenied")), "PUT", "put_problem"),
        (Fault(answer=(403, "AccessDenied")), "GET", "get_problem"),
        (Fault(answer=(403, "AccessDenied")), "DELETE", "delete_problem"),
        (Fault(answer=(301, "PermanentRedirect")), "PUT", "put_problem"),
        (Fault(answer=(403, "RequestTimeTooSkewed")), "PUT", "put_problem"),
        (Fault(flip=3), "GET", "get_problem"),
    ],
)
def test_each_step_at_a_store_has_its_own_cause(home, s3, proxy, fault, method, step):
    proxy.add(fault, method=method, key="uploads/doctor")
    url = s3.url(s3_server.new_prefix(), endpoint=proxy.endpoint)
    facts = look_at_store(load(values(home, store=url), environ={}), clock, "w")
    assert getattr(facts, step) != ""
    if fault.answer is not None:
        words = {"PermanentRedirect": "region=", "RequestTimeTooSkewed": "clock"}
        assert words.get(fault.answer[1], "access was refused") in getattr(facts, step)


def test_a_clock_that_is_off_is_told_by_the_store(home, s3):
    config = load(values(home, store=s3.url(s3_server.new_prefix())), environ={})
    facts = look_at_store(config, lambda: clock() - timedelta(hours=1), "w")
    assert facts.skew_s == pytest.approx(3600, abs=30)
    facts = look_at_store(config, clock, "w")
    assert abs(facts.skew_s) < 30 and facts.put_problem == ""


def test_a_folder_that_cannot_be_written(home, tmp_path):
    (tmp_path / "file").write_text("")
    config = load(values(home, store=f"file://{tmp_path}/file/objects"), environ={})
    assert "can't be written" in look_at_store(config, clock, "w").open_problem
    config = load(values(home, store=f"file://{tmp_path}/objects"), environ={})
    facts = look_at_store(config, clock, "w")
    assert facts == StoreFacts(config.store_url)


def test_a_folder_that_is_no_store_yet_is_not_made_one(home, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for root in (empty, empty / "deep" / "objects"):
        config = load(values(home, store=f"file://{root}"), environ={})
        assert look_at_store(config, clock, "w") == StoreFacts(config.store_url)
        assert list(empty.iterdir()) == []


def test_a_folder_that_is_a_store_is_tried_itself(home, tmp_path):
    url = f"file://{tmp_path}/objects"
    opened = open_store(url)
    opened.put("uploads/other", b"x")
    config = load(values(home, store=url), environ={})
    assert look_at_store(config, clock, "w") == StoreFacts(config.store_url)
    assert opened.list("") == ["uploads/other"]
    (tmp_path / "objects" / "uploads" / "doctor").write_bytes(b"no folder")
    assert "uploads/doctor/w" in look_at_store(config, clock, "w").put_problem


def test_levels_are_words():
    assert [str(x) for x in Level] == ["ok", "warning", "failure"]


def test_a_ray_that_is_not_there_is_given_up(free_port):
    facts = ray_cluster(f"127.0.0.1:{free_port()}", timeout_s=3.0)
    assert "doesn't answer as Ray within 3 s" in facts.problem


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgres://x", "has no known scheme. Write sqlite:///path/to/file"),
        ("redis://127.0.0.1:1/0", "127.0.0.1:1: Connection refused. See that it runs"),
    ],
)
def test_a_registry_that_cannot_be_opened_ends_with_its_remedy(url, said):
    assert said in look_at_registry(url, "", "word").problem
