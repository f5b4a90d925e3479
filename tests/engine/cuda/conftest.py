"""What the tests of the GPU runner share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cuda_runners import Runners


@pytest.fixture(autouse=True)
def poisoned() -> None:
    """Not here: under it torch enqueues other kernels than a service does."""


@pytest.fixture
def runners() -> Iterator[Runners]:
    runners = Runners()
    yield runners
    runners.close()
