"""Which loads are with the loader, which wait, and which version is to blame when it dies.

Pure: calls in, messages out. A loader works on several loads at once, so one death accuses all of
them. Each of those is then tried alone: the innocent ones succeed and are cleared, the guilty one
dies alone. A version is refused once it died alone and was there at `max_kills` deaths in all, so
no version is refused for another's fault, and one bad version holds the others up only while it is
tried.
"""

from __future__ import annotations

from collections import Counter, deque

from engine.errors import AdapterRejected, ErrorInfo
from engine.messages import Load, LoadDone


class Loads:
    """The loads of one replica. Starts without a loader: see `started`."""

    def __init__(self, max_kills: int) -> None:
        self._max_kills = max_kills
        self._alive = False
        self._waiting: deque[Load] = deque()
        self._suspects: deque[Load] = deque()
        self._running: dict[int, Load] = {}
        self._alone = False  # what runs is a suspect
        self._kills: Counter[str] = Counter()
        self._refused: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspects) + len(self._running)

    def add(self, load: Load) -> LoadDone | None:
        """Take on a load; the answer where its version is refused already."""
        if load.ref.key in self._refused:
            return _refusal(load)
        self._waiting.append(load)
        return None

    def started(self) -> None:
        """There is a loader now, with nothing to do."""
        self._alive = True

    def take(self) -> list[Load]:
        """What to send to the loader now."""
        if not self._alive or (self._alone and self._running):
            return []
        self._alone = bool(self._suspects)
        if not self._suspects:
            loads = list(self._waiting)
            self._waiting.clear()
        else:
            loads = [] if self._running else [self._suspects.popleft()]
        self._running.update({load.load_id: load for load in loads})
        return loads

    def done(self, load_id: int) -> None:
        """The loader has answered, so this version did not kill it."""
        load = self._running.pop(load_id, None)
        if load is not None:
            del self._kills[load.ref.key]

    def died(self) -> list[LoadDone]:
        """The loader is gone. Answers for the versions that are refused from now on."""
        self._alive = False
        accused = list(self._running.values())
        self._running.clear()
        self._suspects.extendleft(reversed(accused))
        self._kills.update({load.ref.key for load in accused})
        if len(accused) != 1 or self._kills[accused[0].ref.key] < self._max_kills:
            return []
        return self._refuse(accused[0].ref.key)

    def _refuse(self, key: str) -> list[LoadDone]:
        self._refused.add(key)
        del self._kills[key]
        refused = [x for x in (*self._suspects, *self._waiting) if x.ref.key == key]
        self._suspects = deque(x for x in self._suspects if x.ref.key != key)
        self._waiting = deque(x for x in self._waiting if x.ref.key != key)
        return [_refusal(load) for load in refused]

    def fail(self, error: ErrorInfo) -> list[LoadDone]:
        """No loader can be had: answers for all loads, which are forgotten."""
        loads = [*self._running.values(), *self._suspects, *self._waiting]
        self._running.clear()
        self._suspects.clear()
        self._waiting.clear()
        return [LoadDone(x.load_id, x.ref.key, None, error, 0.0, False) for x in loads]

    def check(self) -> None:
        """Raises AssertionError where an invariant is broken."""
        ids = [x.load_id for x in (*self._waiting, *self._suspects, *self._running.values())]
        assert len(ids) == len(set(ids)), "a load is in two places"
        assert self._alive or not self._running, "a load runs without a loader"
        assert not self._alone or len(self._running) <= 1, "a suspect does not run alone"
        assert not self._refused & set(self._kills), "a refused version is still counted"


def _refusal(load: Load) -> LoadDone:
    error = AdapterRejected(
        f"Adapter {load.ref.ring_key} ended the loader process whenever it was loaded. "
        "Publish a corrected version.",
        code="adapter_kills_loader",
    )
    return LoadDone(load.load_id, load.ref.key, None, error.info(), 0.0, False, permanent=True)
