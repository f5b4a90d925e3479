"""What is needed to publish, in folders of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.published import Keeping, make_keeping


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    keeping = make_keeping(tmp_path)
    yield keeping
    keeping.registry.check()
    keeping.registry.close()
