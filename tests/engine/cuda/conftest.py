"""What the tests of the GPU runner share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels import compiling
from tests.support.cuda_runners import Runners


@pytest.fixture(autouse=True)
def poisoned() -> None:
    """Not here: under it torch enqueues other kernels than a service does."""


@pytest.fixture(autouse=True)
def few_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of the many runners that are made, side by side where tests run so."""
    monkeypatch.setattr(compiling, "MOST_PROCESSES", 2)


@pytest.fixture
def runners() -> Iterator[Runners]:
    runners = Runners()
    yield runners
    runners.close()
