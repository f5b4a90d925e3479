"""Four replicas, many adapters, and one that everybody wants: loads and waits of a whole fleet.

A simulator of the fleet around the router's own decisions: rows, loads that take a while, and
residency that is known half a second late, as replicas report it.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from random import Random

import pytest

from router.load import LoadTable
from router.placement import PlacementPolicy
from router.ring import Ring

REPLICAS = tuple(f"slot-{i}" for i in range(4))
ADAPTERS = 200
ROWS = 32
ROOM = 80
"""Adapters that a replica holds: of four, somewhat more than all there are, once each."""
LOAD_S, SERVE_S = 0.5, 1.0
REPORT_S = 0.5
RATE = 80.0
"""Requests a second: five eighths of the 128 that the rows can serve."""
LASTS_S = 60.0


@dataclass
class Replica:
    """running: when each row is free. resident: key -> when it is there, the latest used last."""

    running: list[float] = field(default_factory=list)
    resident: OrderedDict[int, float] = field(default_factory=OrderedDict)
    loads: int = 0

    def serve(self, key: int, now: float) -> tuple[float, float]:
        """(wait for adapter and row, end) of a request that comes now."""
        if key not in self.resident:
            self.loads += 1
            self.resident[key] = now + LOAD_S
            if len(self.resident) > ROOM:
                self.resident.popitem(last=False)
        self.resident.move_to_end(key)
        start = max(now, self.resident[key])
        if len(self.running) >= ROWS:
            start = max(start, heapq.heappop(self.running))
        heapq.heappush(self.running, start + SERVE_S)
        return start - now, start + SERVE_S


class Fleet:
    """sticky: by the router's ring and policy; else the least loaded takes it."""

    def __init__(self, sticky: bool = True) -> None:
        self.now = 0.0
        self.replicas = {name: Replica() for name in REPLICAS}
        self.waits: list[tuple[float, float]] = []
        self._sticky = sticky
        self._ring = Ring(REPLICAS)
        self._loads = LoadTable(lambda: self.now)
        self._loads.set_members(dict.fromkeys(REPLICAS, 10_000))
        self._policy = PlacementPolicy(1.25, ROWS // 4)
        self._told: dict[str, set[int]] = {name: set() for name in REPLICAS}
        self._told_s = 0.0
        self._ends: list[tuple[float, str]] = []

    def ask(self, key: int, at: float) -> None:
        self.now = at
        while self._ends and self._ends[0][0] <= at:
            self._loads.completed(heapq.heappop(self._ends)[1])
        if at >= self._told_s:
            self._told = {name: set(r.resident) for name, r in self.replicas.items()}
            self._told_s = at + REPORT_S
        if self._sticky:
            placed = self._policy.place(
                self._ring.walk(f"t/{key}"), self._loads, lambda name: key in self._told[name]
            )
        else:
            placed = self._policy.place_base(self._loads, len(self.waits))
        assert placed.replica is not None
        self._loads.sent(placed.replica)
        wait, end = self.replicas[placed.replica].serve(key, at)
        self.waits.append((at, wait))
        heapq.heappush(self._ends, (end, placed.replica))

    @property
    def num_loads(self) -> int:
        return sum(replica.loads for replica in self.replicas.values())

    def holders(self, key: int) -> int:
        return sum(key in replica.resident for replica in self.replicas.values())

    def p99(self, since: float) -> float:
        """Of the waits of requests that came from then on."""
        waits = sorted(wait for at, wait in self.waits if at >= since)
        return waits[int(0.99 * len(waits))]


def zipf(random: Random, num_draws: int, exponent: float = 1.2) -> list[int]:
    weights = [1 / (rank + 1) ** exponent for rank in range(ADAPTERS)]
    return random.choices(range(ADAPTERS), weights, k=num_draws)


def played(fleet: Fleet, keys: list[int], random: Random) -> float:
    """Ask for `keys` at random moments, RATE a second; answers when that began."""
    began = at = fleet.now
    for key in keys:
        at += random.expovariate(RATE)
        fleet.ask(key, at)
    return began


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_a_hot_spot_that_comes_and_moves(fleet: Fleet) -> None:
    """C-HOT-SPOT: each phase's loads and p99. Cold adapters are spread by the ring; a hot one gets
    the replicas that it needs and no more loads than those; when it moves the next one does."""
    random = Random(0)
    num = int(RATE * LASTS_S)

    keys = zipf(random, num)
    began = played(fleet, keys, random)
    distinct = len(set(keys))
    assert distinct <= fleet.num_loads <= 1.5 * distinct
    # The last half is warm: of a hundred requests fewer than one waits for a load.
    assert fleet.p99(began + LASTS_S / 2) <= LOAD_S

    for hot in (7, 150):
        before = fleet.num_loads
        others = zipf(random, num)
        keys = [hot if random.random() < 0.9 else other for other in others]
        began = played(fleet, keys, random)
        busy = Counter({name: len(r.running) for name, r in fleet.replicas.items()})
        assert fleet.holders(hot) == len(REPLICAS), busy
        assert fleet.num_loads - before <= 0.5 * distinct
        assert fleet.p99(began + 5) <= LOAD_S
        assert fleet.p99(began) <= 2 * LOAD_S


def test_stickiness_saves_most_loads_and_costs_no_waits() -> None:
    """C-HOT-SPOT: beside the least loaded taking each request, whose loads never end."""
    results = {}
    for sticky in (True, False):
        random = Random(1)
        fleet = Fleet(sticky)
        played(fleet, zipf(random, int(RATE * LASTS_S)), random)
        results[sticky] = (fleet.num_loads, fleet.p99(LASTS_S / 4))
    assert 2 * results[True][0] < results[False][0]
    assert results[True][1] <= results[False][1]
