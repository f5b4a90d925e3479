"""The quickstart's service: `serve run` on a Ray of its own, watched until it answers."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from deployments.platform.ray_settings import RAY_SETTINGS
from deployments.quickstart.processes import ProcessTree
from engine.errors import LoraplexError

Pause = Callable[[float], bool]
"""Waits for at most so many seconds; True as soon as somebody asked to stop."""

POLL_S = 0.5
GENTLE_S = 30.0
KILL_S = 10.0
MAX_TMP = 20
"""Characters: Ray puts Unix sockets below its folder, and their paths end at 107."""

_DASHBOARD = re.compile(r"View the dashboard at \S*?((?:[\w.-]+|\[[0-9a-f:]+\]):\d+)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """config   the tracked Serve config; `port`, `dtype`, the
             accounts' `order` and `max_step_s` (None: as it says) replace its own
    home     where the config's relative paths start
    data     folder for the log, Ray's token and the config as run
    """

    config: Path
    home: Path
    data: Path
    port: int
    dtype: str | None = None
    order: str | None = None
    max_step_s: float | None = None

    @property
    def log(self) -> Path:
        return self.data / "serve.log"

    @property
    def token(self) -> Path:
        return self.data / "ray-token"


class Service:
    """Started by the constructor; `stop` leaves no process and no temporary file behind."""

    def __init__(self, options: ServiceOptions) -> None:
        """Raises LoraplexError where the port is taken."""
        require_free(options.port)
        self.options = options
        self.url = f"http://127.0.0.1:{options.port}"
        self._token = ensure_secret(options.token)
        config = write_config(options)
        system = tempfile.gettempdir()
        self._scratch = Path(
            tempfile.mkdtemp(prefix="loraplex-", dir=system if len(system) <= MAX_TMP else "/tmp")
        )
        with options.log.open("wb") as log:
            self._tree = ProcessTree(
                [sys.executable, "-m", "ray.serve.scripts", "run", str(config)],
                child_environment(options, self._scratch),
                log,
            )

    @property
    def dashboard(self) -> str | None:
        """Ray's dashboard, once Ray has said where it is."""
        found = _DASHBOARD.search(self.log_text())
        return f"http://{found[1]}" if found else None

    def wait_ready(self, timeout_s: float, progress: Callable[[str], None], pause: Pause) -> bool:
        """True when every deployment runs and /ready answers 200, False when `pause` says to stop.

        Tells `progress` meanwhile what is being waited for. Raises LoraplexError, with the end of
        the log, where the service ends, fails to deploy or isn't ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._is_deployed(progress) and self._is_ready()):
            self.require_running()
            if time.monotonic() > deadline:
                raise LoraplexError(f"not ready after {timeout_s:.0f} s:\n{self.log_tail()}")
            if pause(POLL_S):
                return False
        return True

    def require_running(self) -> None:
        """Raises LoraplexError, with the end of the log, where `serve run` has ended."""
        if (code := self._tree.exit_code) is not None:
            raise LoraplexError(f"`serve run` ended with code {code}:\n{self.log_tail()}")

    def stop(self, pause: Pause) -> bool:
        """End everything, gently until `pause` says to hurry; whether no process is left."""
        self._tree.interrupt()
        deadline = time.monotonic() + GENTLE_S
        while self._tree.descendants() and time.monotonic() < deadline:
            if pause(POLL_S):
                break
        gone = self._tree.kill(KILL_S)
        shutil.rmtree(self._scratch, ignore_errors=True)
        return gone

    def serve_details(self) -> dict[str, Any]:
        """What the dashboard's Serve API says; {} while it doesn't answer."""
        if self.dashboard is None:
            return {}
        try:
            answer = httpx.get(
                f"{self.dashboard}/api/serve/applications/",
                headers={"Authorization": f"Bearer {self._token}"},
                timeout=5,
            )
            answer.raise_for_status()
            return dict(answer.json())
        except (httpx.HTTPError, ValueError):
            return {}

    def devices(self, admin_key: str) -> list[dict[str, Any]]:
        """What each replica that answers runs on, as it says itself."""
        headers = {"Authorization": f"Bearer {admin_key}"}
        try:
            answer = httpx.get(f"{self.url}/v1/replicas", headers=headers, timeout=10)
            replicas = answer.raise_for_status().json()["data"]
        except httpx.HTTPError:
            return []
        return [replica["device"] for replica in replicas if replica["device"]]

    def log_text(self) -> str:
        """What Ray and the replicas have said so far, colours taken out."""
        return _ANSI.sub("", self.options.log.read_text(errors="replace"))

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:]) + f"\n(from {self.options.log})"

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def _is_deployed(self, progress: Callable[[str], None]) -> bool:
        """Whether all that the config names runs. Raises LoraplexError where something failed."""
        applications = self.serve_details().get("applications", {})
        if not applications:
            progress("starting Ray")
            return False
        running = True
        for application in applications.values():
            deployments = application["deployments"]
            if application["status"] == "DEPLOY_FAILED":
                why = [application["message"], *(d["message"] for d in deployments.values())]
                raise LoraplexError("deployment failed: " + "\n".join(filter(None, why)))
            running = running and application["status"] == "RUNNING"
            progress(_stage(deployments))
        return running


def _stage(deployments: Mapping[str, Any]) -> str:
    """In a few words, how far these deployments of the Serve API are."""
    parts = []
    for name, deployment in deployments.items():
        running = sum(replica["state"] == "RUNNING" for replica in deployment["replicas"])
        parts.append(f"{name} {running}/{deployment['target_num_replicas']}")
    return "starting replicas: " + ", ".join(parts) if parts else "building the application"


def require_free(port: int) -> None:
    """Raises LoraplexError where `port` of 127.0.0.1 can't be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LoraplexError(
                f"port {port} can't be had ({error.strerror}): choose another with PORT=..."
            ) from error


def ensure_secret(path: Path) -> str:
    """The secret in the file `path`, made (readable by its owner alone) where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text().strip()


def write_config(options: ServiceOptions) -> Path:
    """The tracked config itself, or a copy in the data folder where an option changes it."""
    config = yaml.safe_load(options.config.read_text())
    own = {
        "dtype": options.dtype,
        "accounts": options.order and {"order": options.order},
        "schedule": options.max_step_s and {"max_step_s": options.max_step_s},
    }
    changed = rendered(config, options.port, {k: v for k, v in own.items() if v is not None})
    if changed == config:
        return options.config
    path = options.data / "serve.yaml"
    path.write_text(yaml.safe_dump(changed, sort_keys=False))
    return path


def rendered(config: Mapping[str, Any], port: int, replica: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the proxy on `port` and these keys of the replicas' section."""
    changed = {**config, "http_options": {**config["http_options"], "port": port}}
    if replica:
        (application,) = config["applications"]
        args = {**application["args"], "replica": {**application["args"]["replica"], **replica}}
        changed["applications"] = [{**application, "args": args}]
    return changed


def child_environment(options: ServiceOptions, scratch: Path) -> dict[str, str]:
    """For `serve run` and all below it: a Ray apart from any other on this machine."""
    return {
        **os.environ,
        **RAY_SETTINGS,
        "LORAPLEX_HOME": str(options.home),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_ADDRESS": "local",
        "RAY_TMPDIR": str(scratch),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(options.token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONUNBUFFERED": "1",
    }
