"""Kills a writer before each line that its put runs: `python -m tests.support.killed_writer URL KEY
FILE`. KEY holds b"old" at first. Prints what was seen after each kill, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from engine.adapters import folder_store
from engine.adapters.store import ObjectStore, open_store
from tests.support.s3_server import IMPATIENT

OURS = str(Path(folder_store.__file__).parent)


def put_until(line: int, store: ObjectStore, key: str, source: Path) -> None:
    """Put, and die before the `line`-th line of our code."""
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    store.put(key, source)
    sys.settrace(None)


def is_killed(line: int, store: ObjectStore, key: str, source: Path) -> bool:
    child = os.fork()
    if child == 0:
        put_until(line, store, key, source)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def state(store: ObjectStore, key: str, new: bytes) -> str:
    """Read to its end, whichever it is."""
    found = b"".join(store.read(key))
    return {b"old": "old", new: "new"}.get(found, f"{len(found)} bytes of something else")


def main() -> None:
    url, key, source = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    new = source.read_bytes()
    seen: dict[str, int] = {}
    line = 1
    store = open_store(url, IMPATIENT)
    inherited = open_store(url, IMPATIENT)  # never used here, so it has no connections to share
    while is_killed(line, inherited, key, source):
        found = state(store, key, new)
        seen[found] = seen.get(found, 0) + 1
        if found == "new":
            store.put(key, b"old")
        line += 1
    print(json.dumps({"kills": line - 1, "seen": seen, "keys": store.list("")}))


if __name__ == "__main__":
    main()
