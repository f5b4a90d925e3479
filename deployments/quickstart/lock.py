"""One quickstart at a time on a data folder: two would write the same log and the same files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from engine.errors import LoraplexError


class DataLock:
    """Held from construction to `close`, or to the end of the process, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Raises LoraplexError, naming the process that holds it, where another does."""
        self._file = (folder / "serve.pid").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            pid = self._file.read().strip()
            self._file.close()
            raise LoraplexError(
                f"process {pid} serves from {folder} already. End it with Ctrl-C, or with `kill"
                f" {pid}` where its terminal is gone. A second service needs a checkout of its own."
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def close(self) -> None:
        self._file.close()
