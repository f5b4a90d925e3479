"""What the command says when it can't begin."""

from __future__ import annotations

import os
from pathlib import Path

from typer.testing import CliRunner

from deployments.quickstart.__main__ import app
from deployments.quickstart.lock import DataLock


def _said(home: Path) -> str:
    result = CliRunner().invoke(app, ["serve", "--home", str(home)])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    return result.output


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / ".loraplex").write_text("a file in the folder's place")
    assert f"{tmp_path}/.loraplex/quickstart: Not a directory" in _said(tmp_path)


def test_a_second_service_on_the_same_data_says_which_is_the_first(tmp_path: Path) -> None:
    data = tmp_path / ".loraplex/quickstart"
    data.mkdir(parents=True)
    first = DataLock(data)
    assert f"process {os.getpid()} serves from {data} already" in _said(tmp_path)
    first.close()
