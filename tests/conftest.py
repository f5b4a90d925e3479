"""What every test gets: seeded random numbers, poisoned memory, and on request a local Ray."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.support import fault_proxy, interpreter, s3_server
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_server import S3Server

PROJECT = Path(__file__).parent.parent

# A test file is an importable module of no package, so children that it starts find ours here.
os.environ["PYTHONPATH"] = str(PROJECT)
# A local Ray of our own, whatever the shell points at, and without writing into the home folder.
os.environ["RAY_ADDRESS"] = ""
os.environ["RAY_AUTH_MODE"] = "disabled"
# Several processes of a test share the cores: one that waits must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
interpreter.choose()
# The same examples in every run; a busy machine is no failure.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
# The S3 server of our own, and nobody's credentials but its own.
os.environ.update(s3_server.ENVIRONMENT)


def runs_ray(nodeid: str) -> bool:
    return nodeid.startswith("tests/e2e/") or "_ray.py::" in nodeid


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest starts first, for whoever runs the rest beside it."""
    items.sort(key=lambda item: not runs_ray(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A process takes a file at a time, so that its servers start once; and one has all of Ray."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415

    class OneRay(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if runs_ray(nodeid) else nodeid.split("::", 1)[0]

    return OneRay(config, log)


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """`torch.empty` and its kin hand out NaN, so that a row nobody wrote shows.

    Only where torch is loaded: a test of pure code doesn't wait for it.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def project() -> Path:
    """The repository's root."""
    return PROJECT


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A TCP port of 127.0.0.1 that is free at the time of the call."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return find


@dataclass(frozen=True)
class RayLocal:
    """A Ray of this test session with Serve started on it. `url` is Serve's proxy; at `metrics`
    (host:port) Prometheus finds the node's."""

    url: str
    metrics: str


@pytest.fixture(scope="session")
def ray_local(free_port: Callable[[], int]) -> Iterator[RayLocal]:
    """One local Ray and Serve for the whole session; each test deploys and deletes its own apps."""
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415

    port, metrics = free_port(), free_port()
    ray.init(
        "local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        namespace="serve",
        _metrics_export_port=metrics,
        _system_config={"metrics_report_interval_ms": 1000},
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    yield RayLocal(url=f"http://127.0.0.1:{port}", metrics=f"127.0.0.1:{metrics}")
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server for the whole session; each test has a prefix of its own in its bucket."""
    with s3_server.running() as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the S3 server that harms what it is told to."""
    with fault_proxy.proxy_before(s3.endpoint) as proxy:
        yield proxy
