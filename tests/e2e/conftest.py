"""One running quickstart service for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.oracle import Oracle, load
from tests.support.service import Service

HERE = Path(__file__).parent

_running: pytest.StashKey[Service] = pytest.StashKey()


@pytest.fixture(scope="session")
def service(
    project: Path,
    free_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Service]:
    """One service for all tests of this folder; stopped after the last of them."""
    service = Service(project, tmp_path_factory.mktemp("home"), free_port())
    request.config.stash[_running] = service
    yield service
    service.stop()


@pytest.hookimpl(trylast=True)  # a test's own fixtures may still ask the service
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The service's memory and processors are given back before the next folder's tests."""
    last = nextitem is None or HERE not in nextitem.path.parents
    if last and (service := item.config.stash.get(_running, None)) is not None:
        service.stop()


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return load()
