"""A data folder has one quickstart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.quickstart.lock import DataLock
from engine.errors import LoraplexError

HOLDER = """
import sys, time
from pathlib import Path
from deployments.quickstart.lock import DataLock
lock = DataLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_is_told_who_holds_the_folder_until_it_ends(tmp_path: Path) -> None:
    first = DataLock(tmp_path)
    with pytest.raises(LoraplexError, match=f"kill {os.getpid()}`"):
        DataLock(tmp_path)
    first.close()
    DataLock(tmp_path).close()


def test_a_killed_holder_holds_nothing(project: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LoraplexError, match=f"process {holder.pid} serves"):
            DataLock(tmp_path)
        holder.kill()
    DataLock(tmp_path).close()
