from __future__ import annotations

import pytest

from tests.support.peft_folders import write_base


@pytest.fixture
def base(tmp_path):
    """A tiny base with a tied head: (folder, spec)."""
    folder = tmp_path / "base"
    return folder, write_base(folder)


@pytest.fixture
def spec(base):
    return base[1]
