"""Which replica takes a request. Pure: a ring walk, loads and residency in, a placement out.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016), walking the one ring
order and never a second strategy: an adapter's traffic stays on its owner while that is within the
bound, and what overflows goes to the same successors each time, first to those already warm.

    bound = max(min_bound, ceil(load_factor x (requests in progress + 1) / replicas))

Below `min_bound` nothing spills: there a spill costs a cold load and buys nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from router.load import LoadTable


class Reason(StrEnum):
    """Why a request went where it went."""

    OWNER = "owner"  # the ring owner, within the bound
    RESIDENT = "resident"  # a successor within the bound that already holds the adapter
    SPILL = "spill"  # the first successor within the bound
    LEAST_LOADED = "least_loaded"  # nobody on the walk was within the bound
    BASE = "base"  # no adapter, so the least loaded
    FULL = "full"  # every replica is at its own limit: wait


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision. `replica` is None exactly where `reason` is FULL. bound 0: none applied.

    spare  the replica that would be next, where this one is near its bound and the other doesn't
           have the adapter yet: tell it to bring it nearer
    """

    replica: str | None
    reason: Reason
    bound: int = 0
    spare: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """load_factor: how far above the mean a replica may go, > 1. min_bound: requests, >= 1.
    near: from which part of its bound on the owner's overflow is prepared for, in (0, 1]."""

    load_factor: float = 1.25
    min_bound: int = 1
    near: float = 0.8

    def __post_init__(self) -> None:
        if not self.load_factor > 1 or self.min_bound < 1:
            raise ValueError("load_factor must be above 1 and min_bound at least 1")

    def bound(self, total: int, num_replicas: int) -> int:
        """The most requests a replica may have after this one joins the `total` in progress."""
        return max(self.min_bound, math.ceil(self.load_factor * (total + 1) / num_replicas))

    def place(
        self, walk: Sequence[str], loads: LoadTable, holds: Callable[[str], bool]
    ) -> Placement:
        """Places a request for an adapter.

        walk   replicas in its key's ring order, owner first; may be a prefix of the ring
        holds  whether a replica has the adapter (or is loading it); asked only on a spill
        """
        if not len(loads):
            return Placement(None, Reason.FULL)
        loads.expire()
        bound = self.bound(loads.total, len(loads))
        first: str | None = None
        for replica in walk:
            if loads.load(replica) >= bound or not loads.room(replica):
                continue
            if replica == walk[0]:
                spare = self._spare(walk, loads, holds, bound)
                return Placement(replica, Reason.OWNER, bound, spare)
            if holds(replica):
                return Placement(replica, Reason.RESIDENT, bound)
            first = first or replica
        if first is not None:
            return Placement(first, Reason.SPILL, bound)
        least = loads.least()
        return Placement(least, Reason.FULL if least is None else Reason.LEAST_LOADED, bound)

    def _spare(
        self, walk: Sequence[str], loads: LoadTable, holds: Callable[[str], bool], bound: int
    ) -> str | None:
        """Where the owner's overflow will go, if that is near and would find the adapter cold."""
        load = loads.load(walk[0])
        if not load or load + 1 < self.near * bound:
            return None
        for replica in walk[1:]:
            if loads.load(replica) < bound and loads.room(replica):
                return None if holds(replica) else replica
        return None

    def place_base(self, loads: LoadTable, tie: int) -> Placement:
        """Places a request for the base model: every replica has it, so the least loaded.

        `tie` picks among equals (a hash of the request), lest all routers choose the same one.
        """
        loads.expire()
        least = loads.least(tie)
        return Placement(least, Reason.FULL if least is None else Reason.BASE)
