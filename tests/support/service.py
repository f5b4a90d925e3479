"""The quickstart's service, started the way `make serve` starts it, on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

READY_S = 500
STOP_S = 120
TENANT_OF = {"support": "acme", "sql": "globex", "pirate": "blackbeard"}
BASE = "smollm2-135m-instruct"


class Service:
    """A running `python -m deployments.quickstart serve` with its data below `home`.

    dtype: in fp32 answers can be compared token by token; None leaves it to the service. order
    of accounts and max_step_s likewise.
    """

    def __init__(
        self,
        project: Path,
        home: Path,
        port: int,
        dtype: str | None = "float32",
        order: str | None = None,
        max_step_s: float | None = None,
    ) -> None:
        self.home = home
        self.data = home / ".loraplex" / "quickstart"
        self.url = f"http://127.0.0.1:{port}"
        self._output = home / "output.txt"
        began = time.monotonic()
        command = [sys.executable, "-m", "deployments.quickstart", "serve"]
        command += ["--home", str(home), "--port", str(port)]
        command += [] if dtype is None else ["--dtype", dtype]
        command += [] if order is None else ["--order", order]
        command += [] if max_step_s is None else ["--max-step-s", str(max_step_s)]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=project, stdout=output, stderr=output, start_new_session=True
            )
        try:
            self._wait_until(lambda: "is ready" in self.output, READY_S)
        except BaseException:
            self.stop()
            raise
        self.startup_s = time.monotonic() - began

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def keys(self) -> dict[str, str]:
        """By tenant, and `admin`."""
        keys: dict[str, str] = json.loads((self.data / "keys.json").read_text())
        return keys

    @property
    def dashboard(self) -> str:
        """Where Ray's dashboard is, as the start-up told."""
        found = re.search(r"dashboard: (http://\S+)", self.output)
        assert found is not None, self.output
        return found[1]

    @property
    def ray_token(self) -> str:
        return (self.data / "ray-token").read_text().strip()

    def client(self, who: str, timeout_s: float = 300.0) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.keys[who]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)

    def replicas(self) -> list[dict[str, Any]]:
        """What each replica says of itself."""
        with self.client("admin") as client:
            answer = client.get("/v1/replicas").raise_for_status()
        replicas: list[dict[str, Any]] = answer.json()["data"]
        return replicas

    def processes(self) -> dict[int, str]:
        """Command lines, by process id, of all that inherited this service's environment."""
        mark = f"LORAPLEX_HOME={self.home}".encode()
        found = {}
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = line.decode(errors="replace").strip()
        return found

    def stop(self) -> int:
        """Ctrl-C; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                raise
        return self._process.returncode

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)
