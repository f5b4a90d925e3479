"""A registry and a store that kill their process at a chosen step of what it changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.adapters.store import ObjectStore


@dataclass
class Steps:
    """Counts changes; each has a step before it, one in its midst and one after it. The process is
    killed at step `until`, counted from 0."""

    until: int
    count: int = 0

    def around(self, change: Callable[[], Any], half: Callable[[], object]) -> Any:
        self._step(lambda: None)
        self._step(half)
        answer = change()
        self._step(lambda: None)
        return answer

    def _step(self, first: Callable[[], object]) -> None:
        if self.count == self.until:
            first()
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class KillingStore:
    """Half a put leaves half a file where a folder store writes before it renames."""

    def __init__(self, inner: ObjectStore, root: Path, steps: Steps) -> None:
        self._inner = inner
        self._incoming = root / ".incoming"
        self._steps = steps

    def put(self, key: str, source: Path | bytes) -> Any:
        def half() -> None:
            data = source if isinstance(source, bytes) else source.read_bytes()
            (self._incoming / "killed").write_bytes(data[: len(data) // 2])

        return self._steps.around(lambda: self._inner.put(key, source), half)

    def delete(self, key: str) -> Any:
        return self._steps.around(lambda: self._inner.delete(key), lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class KillingRegistry:
    """A write is whole or not at all, so in its midst is before it."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    def put(self, key: str, value: Any, expected_rev: int | None) -> Any:
        return self._steps.around(lambda: self._inner.put(key, value, expected_rev), lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def killed(work: Callable[[Steps], object], until: int) -> bool:
    """Run `work` in a child that is killed at step `until`; False where it ended before."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(Steps(until))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return False
