"""What `make serve` hands to `serve run`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deployments.quickstart.service import (
    ServiceOptions,
    ensure_secret,
    rendered,
    require_free,
    write_config,
)
from engine.errors import LoraplexError


@pytest.fixture
def config(project: Path) -> Path:
    return project / "deployments" / "quickstart.yaml"


def test_the_tracked_config_is_run_as_it_is(config: Path, tmp_path: Path) -> None:
    options = ServiceOptions(config, tmp_path, tmp_path, port=8000)
    assert write_config(options) == config


def test_an_option_changes_its_own_key_alone(config: Path, tmp_path: Path) -> None:
    options = ServiceOptions(config, tmp_path, tmp_path, port=8123, dtype="float32")
    before = yaml.safe_load(config.read_text())
    written = yaml.safe_load(write_config(options).read_text())
    assert written["http_options"].pop("port") == 8123
    assert written["applications"][0]["args"]["replica"].pop("dtype") == "float32"
    del before["http_options"]["port"], before["applications"][0]["args"]["replica"]["dtype"]
    assert written == before


def test_rendering_leaves_its_argument_alone(config: Path) -> None:
    before = yaml.safe_load(config.read_text())
    rendered(before, 1234, {"dtype": "float32", "accounts": {"order": "fcfs"}})
    assert before == yaml.safe_load(config.read_text())


def test_a_taken_port_is_an_error_that_names_the_variable(free_port: Callable[[], int]) -> None:
    port = free_port()
    require_free(port)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(LoraplexError, match="PORT="):
        require_free(port)


def test_a_secret_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    secret = ensure_secret(path)
    assert len(secret) == 64
    assert ensure_secret(path) == secret
    assert path.stat().st_mode & 0o777 == 0o600
