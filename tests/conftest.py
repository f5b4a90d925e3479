"""What every test gets: seeded random numbers, poisoned memory, and on request a local Ray."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.support import fault_proxy, interpreter, ports, s3_server
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_server import S3Server

PROJECT = Path(__file__).parent.parent

# A test file is an importable module of no package, so children that it starts find ours here.
os.environ["PYTHONPATH"] = str(PROJECT)
# A local Ray of our own, whatever the shell points at, and without writing into the home folder.
os.environ["RAY_ADDRESS"] = ""
os.environ["RAY_AUTH_MODE"] = "disabled"
# Ray's workers would run at niceness 15, behind whatever the other tests compute.
os.environ.update(RAY_worker_niceness="0")
# A machine whose memory others take is no reason to kill a worker in the midst of a test.
os.environ.update(RAY_memory_monitor_refresh_ms="0")
# On a busy machine Serve's proxy is up later than the 5 s after which Serve would kill it.
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"
os.environ["RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S"] = "60"
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


RAYS = ["quickstart", "shared", "cluster"]
"""Which Ray a test runs on: the quickstart's, `ray_local`, or one of several nodes."""


def ray_of(nodeid: str) -> str | None:
    file = nodeid.split("::", 1)[0]
    if file.startswith("tests/e2e/"):
        return "quickstart"
    if not file.endswith("_ray.py"):
        return None
    return "cluster" if file.endswith("_cluster_ray.py") else "shared"


def pytest_configure(config: pytest.Config) -> None:
    """What Rays of this process leave in files lies apart from any other's. The path is short, as a
    socket's below it may have 107 bytes."""
    folder = tempfile.mkdtemp(prefix="lp-", dir="/tmp")
    os.environ["RAY_TMPDIR"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest starts first; the many files without Ray then fill both processes to the
    end."""
    order: list[str | None] = [*RAYS, None]
    items.sort(key=lambda item: order.index(ray_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A process takes a file at a time, so that its servers start once, or all of one Ray."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415

    class ByServers(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return ray_of(nodeid) or nodeid.split("::", 1)[0]

    return ByServers(config, log)


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
    """A TCP port of 127.0.0.1 for a server that is about to start."""
    return ports.free_port


@dataclass(frozen=True)
class RayLocal:
    """A Ray of this test session with Serve started on it. `url` is Serve's proxy; at `metrics`
    (host:port) Prometheus finds the node's."""

    url: str
    metrics: str


@pytest.fixture(scope="session")
def ray_local(free_port: Callable[[], int]) -> Iterator[RayLocal]:
    """One local Ray and Serve for all that ask; each test deploys and deletes its own apps."""
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
    end_ray()


def end_ray() -> None:
    """Ours, where it has come up. Elsewhere Serve's shutdown would take another or start one."""
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


@pytest.hookimpl(trylast=True)  # a test's own fixtures may still use it
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """An idle Ray takes a tenth of a processor: it ends with the last test that asks for one."""
    if "ray_local" not in item.fixturenames or nextitem is None:  # type: ignore[attr-defined]
        return
    items = item.session.items
    later = items[items.index(item) + 1 :]
    if not any("ray_local" in other.fixturenames for other in later):  # type: ignore[attr-defined]
        end_ray()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A real S3 server; each test has a prefix of its own in its bucket. One for each file, up in a
    second: idle, it takes a tenth of a processor."""
    with s3_server.running() as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the S3 server that harms what it is told to."""
    with fault_proxy.proxy_before(s3.endpoint) as proxy:
        yield proxy
