"""A Ray cluster of several nodes on this machine, and the tracked Serve config deployed to it.

Nothing here connects to it: commands do, in processes of their own, as an operator's would. So a
test session may have a local Ray of its own beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from ray._private.node import Node
from ray.cluster_utils import Cluster

from deployments.platform.ray_settings import RAY_SETTINGS

STATUS = """
import json, sys, time, ray
from ray import serve
ray.init(sys.argv[1], namespace="serve", log_to_driver=False, logging_level="ERROR")
while True:
    app = serve.status().applications.get("loraplex")
    said = {} if app is None else {name: d.message for name, d in app.deployments.items()}
    told = {"status": app and app.status, "message": app and app.message, "said": said}
    print(json.dumps(told), flush=True)
    time.sleep(0.2)
"""


class RayCluster:
    """`nodes`: those beside the head, in the order in which they joined."""

    def __init__(self, project: Path, environment: Mapping[str, str]) -> None:
        self._project = project
        self._environment = {**RAY_SETTINGS, **environment}
        self._cluster = Cluster()
        self.nodes: list[Node] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self, num_cpus: int) -> None:
        """The first is the head."""
        head = self._cluster.head_node is None
        node = self._cluster.add_node(
            num_cpus=num_cpus, env_vars=self._environment, include_dashboard=False
        )
        if not head:
            self.nodes.append(node)

    def lose(self, node: Node) -> None:
        """As if its machine were switched off."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def deploy(self, config: Path) -> None:
        """`serve run`, which returns once the cluster has the config."""
        self._run("-m", "ray.serve.scripts", "run", "--non-blocking", str(config))

    def statuses(self, within_s: float = 180.0) -> Iterator[dict[str, Any]]:
        """Of the application, again and again: {"status", "message", "said": by deployment}. After
        `within_s` it raises."""
        line = ""
        with subprocess.Popen(
            [sys.executable, "-c", STATUS, self.address],
            cwd=self._project,
            env=self._env,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            deadline = threading.Timer(within_s, process.kill)
            deadline.start()
            try:
                for line in process.stdout:
                    if line.startswith("{"):
                        yield json.loads(line)
            finally:
                deadline.cancel()
                process.kill()
        raise AssertionError(
            f"what was waited for wasn't said within {within_s} s, or the process "
            f"that asks has failed, with its error above; its last words: {line}"
        )

    def close(self) -> None:
        self._cluster.shutdown()

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, **self._environment, "RAY_ADDRESS": self.address}

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self._project,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def ray_cluster(project: Path, environment: Mapping[str, str]) -> Iterator[RayCluster]:
    """Without a node yet. All its processes get `environment` and the settings of Ray that the
    service needs."""
    cluster = RayCluster(project, environment)
    try:
        yield cluster
    finally:
        cluster.close()


def write_serve_config(tracked: Path, changes: Mapping[str, Any], to: Path) -> Path:
    """A copy of the Serve config `tracked` with `changes` merged in, key by key. Those of its one
    application and of its one deployment lie at the top: "args", "deployment"."""
    config = yaml.safe_load(tracked.read_text())
    (application,) = config["applications"]
    wanted = dict(changes)
    args = _merged(application["args"], wanted.pop("args", {}))
    (deployment,) = application["deployments"]
    deployment = _merged(deployment, wanted.pop("deployment", {}))
    config = _merged(config, wanted)
    config["applications"] = [{**application, "args": args, "deployments": [deployment]}]
    to.write_text(yaml.safe_dump(config))
    return to


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = {k: _merged(old[k], new[k]) for k in new if isinstance(old.get(k), dict)}
    return {**old, **new, **both}
