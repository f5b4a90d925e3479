"""Prometheus and promtool: those on the path, or Debian's package, fetched once into a folder of
the project. No root, no daemon of the system's."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

FETCH_S = 120


def tool(name: str, project: Path) -> Path:
    """`prometheus` or `promtool`. Skips the test, with the reason, where it can't be had."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    tools = project / ".loraplex" / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    path = tools / "prometheus" / "usr" / "bin" / name
    with (tools / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _fetch(tools)
    return path


def _fetch(tools: Path) -> None:
    try:
        _run(["apt-get", "download", "-q", "prometheus"], tools)
        (package,) = tools.glob("prometheus_*.deb")
        _run(["dpkg", "-x", str(package), str(tools / "fetched")], tools)
        (tools / "fetched").rename(tools / "prometheus")
        package.unlink()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        pytest.skip(f"prometheus is not on the path, and Debian's can't be had: {error!r}")


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, timeout=FETCH_S, check=True)


class Prometheus:
    """url: where it answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The instant vector."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}, timeout=30)
        assert answer.status_code == 200, answer.text
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if ready():
                    return
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, "not within the time"
            time.sleep(0.2)


@contextmanager
def scraping(
    targets: Sequence[str], folder: Path, project: Path, port: int
) -> Iterator[Prometheus]:
    """A server of its own that scrapes them every three seconds. That is also how long a scrape may
    take, which on a busy machine is more than one."""
    config = {
        "global": {"scrape_interval": "3s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "ray", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        str(tool("prometheus", project)),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        server.wait(lambda: httpx.get(f"{server.url}/-/ready", timeout=5).status_code == 200, 120)
        yield server
    finally:
        process.terminate()
        process.wait(120)
