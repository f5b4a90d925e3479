"""The counted right to use an adapter on the device. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """Held by a sequence from its admission to its end or preemption.

    While one exists its adapter keeps its place. The launched plans that still read the adapter
    after the lease is gone are covered by the plan id with which the arena takes the run back.

    adapter  index into the adapter table
    """

    key: str
    adapter: int
