"""Starting again, and leaving nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.service import BASE, Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

EARLY_STOP_S = 60.0


def _files(service: Service) -> dict[Path, tuple[int, int]]:
    """What has been made of the model and the adapters, each file by inode and time of writing."""
    folders = [service.data / "model", service.data / "objects"]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def test_what_a_person_is_told(service: Service) -> None:
    shown = service.output
    assert f"{service.url}/v1" in shown
    for who, key in service.keys.items():
        assert key.startswith("lp-"), who
        assert key in shown
    assert f"curl {service.url}/v1/chat/completions" in shown
    assert "from openai import OpenAI" in shown
    assert (service.data / "keys.json").stat().st_mode & 0o777 == 0o600


def test_health_and_readiness_need_no_key(service: Service) -> None:
    assert httpx.get(f"{service.url}/health").status_code == 200
    assert httpx.get(f"{service.url}/ready", timeout=10).json()["replicas"] >= 1


def test_stop_leaves_no_process_and_a_second_start_makes_nothing_anew(
    project: Path, service: Service, free_port: Callable[[], int]
) -> None:
    """So it is quick: some 17 s on two cores that do nothing else."""
    assert service.stop() == 0
    assert service.processes() == {}
    keys, made = service.keys, _files(service)
    again = Service(project, service.home, free_port())
    try:
        assert again.keys == keys
        assert _files(again) == made
        with again.client("acme") as client:
            models = client.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == [BASE, "acme/support"]
        assert again.processes()
    finally:
        code = again.stop()
    assert code == 0
    assert again.processes() == {}


def test_a_stop_before_it_is_ready_waits_for_nothing(
    project: Path, service: Service, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """On the first service's data, which it has left by now; Ray is still starting then."""
    service.stop()
    (service.data / "serve.log").unlink()
    command = [sys.executable, "-m", "deployments.quickstart", "serve"]
    command += ["--home", str(service.home), "--port", str(free_port())]
    with (
        (tmp_path / "output.txt").open("wb") as output,
        subprocess.Popen(command, cwd=project, stdout=output, stderr=output) as process,
    ):
        while not (service.data / "serve.log").exists():
            assert process.poll() is None, (tmp_path / "output.txt").read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(EARLY_STOP_S) == 0
    assert "is ready" not in (tmp_path / "output.txt").read_text()
    assert service.processes() == {}
