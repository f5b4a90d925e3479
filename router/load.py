"""How loaded each replica is, as one router knows it. Pure: event in, numbers out.

Two sources, neither enough alone. Our own count is exact and instant, but blind to other routers'
requests. The replica's report (with each admission, and when probed) counts everybody's, but is a
moment old: it forgets what we sent since. A replica's load is the larger of the two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping


class LoadTable:
    """Requests in progress per replica, and their sum, kept up to date event by event.

    Replicas are named by any stable string. Those of the last `set_members` count; the own count
    of one that left lives on until its requests have completed.

    clock        seconds, monotonic
    staleness_s  a report is dropped after this; the own count then stands alone
    """

    def __init__(self, clock: Callable[[], float], *, staleness_s: float = 10.0) -> None:
        self._clock = clock
        self._staleness_s = staleness_s
        self._own: dict[str, int] = {}
        self._reports: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._loads: dict[str, int] = {}
        self._caps: Mapping[str, int] = {}
        self._down: set[str] = set()
        self.total = 0

    # Events -----------------------------------------------------------------------------------
    def set_members(self, caps: Mapping[str, int]) -> None:
        """These replicas, in this order, each with the most requests it takes at once."""
        self._caps = dict(caps)
        self._down &= caps.keys()
        for replica in self._reports.keys() - caps.keys():
            del self._reports[replica]
        self._loads = {replica: self._combine(replica) for replica in caps}
        self.total = sum(self._loads.values())

    def sent(self, replica: str) -> None:
        self._own[replica] = self._own.get(replica, 0) + 1
        self._shift_report(replica, 1)
        self._recount(replica)

    def completed(self, replica: str) -> None:
        """Once for each `sent`, however it ended. More than that does no harm."""
        left = self._own.get(replica, 0) - 1
        if left > 0:
            self._own[replica] = left
        else:
            self._own.pop(replica, None)
        self._recount(replica)

    def reported_completed(self, replica: str) -> None:
        """A request that the replica had admitted, and so reported, has completed. Apart from
        `completed`, because a short request's end can overtake the report of its admission."""
        self._shift_report(replica, -1)
        self._recount(replica)

    def report(self, replica: str, num_ongoing: int) -> None:
        """The replica said how many requests it has. It is reachable, so no longer down."""
        if replica not in self._caps:
            return
        self._down.discard(replica)
        self._reports[replica] = (num_ongoing, self._clock())
        self._reports.move_to_end(replica)
        self._recount(replica)

    def mark_down(self, replica: str) -> None:
        """Not reachable at present: takes nothing until it reports again."""
        if replica in self._caps:
            self._down.add(replica)
            self._reports.pop(replica, None)
            self._recount(replica)

    # Questions --------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self._loads)

    def load(self, replica: str) -> int:
        return self._loads.get(replica, 0)

    def room(self, replica: str) -> int:
        """How many more requests it takes, 0 for one that is full, down or unknown."""
        if replica in self._down or replica not in self._loads:
            return 0
        return max(0, self._caps[replica] - self._loads[replica])

    def is_down(self, replica: str) -> bool:
        return replica in self._down

    def expire(self) -> None:
        """Drops reports that are too old. Called before a decision; costs only what it drops."""
        horizon = self._clock() - self._staleness_s
        while self._reports:
            replica, (_, time) = next(iter(self._reports.items()))
            if time >= horizon:
                return
            del self._reports[replica]
            self._recount(replica)

    def least(self, tie: int = 0) -> str | None:
        """The least loaded replica with room, None if nobody has any.

        Of equals, the first at or after position `tie` (modulo their number) in member order.
        """
        replicas, loads = list(self._loads), list(self._loads.values())
        if not replicas:
            return None
        start = tie % len(replicas)
        least = min(loads)
        if least in loads[start:]:
            candidate = replicas[loads.index(least, start)]
        else:
            candidate = replicas[loads.index(least)]
        if self.room(candidate):
            return candidate
        with_room = [r for r in replicas[start:] + replicas[:start] if self.room(r)]
        return min(with_room, key=self._loads.__getitem__, default=None)

    def check(self) -> None:
        """Asserts what must hold between any two calls."""
        assert self.total == sum(self._loads.values())
        assert self._loads.keys() == self._caps.keys()
        assert all(n > 0 for n in self._own.values())
        assert all(n >= 0 for n, _ in self._reports.values())
        assert self._reports.keys() | self._down <= self._caps.keys()
        times = [time for _, time in self._reports.values()]
        assert times == sorted(times)
        for replica, load in self._loads.items():
            assert load == self._combine(replica)

    # ------------------------------------------------------------------------------------------
    def _combine(self, replica: str) -> int:
        reported, _ = self._reports.get(replica, (0, 0.0))
        return max(self._own.get(replica, 0), reported)

    def _shift_report(self, replica: str, by: int) -> None:
        if replica in self._reports:
            num, time = self._reports[replica]
            self._reports[replica] = (max(0, num + by), time)

    def _recount(self, replica: str) -> None:
        if replica in self._loads:
            load = self._combine(replica)
            self.total += load - self._loads[replica]
            self._loads[replica] = load
