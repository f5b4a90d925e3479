"""Which slots an adapter belongs to: for orders that go to its owners and nobody else. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from router.ring import Ring


def owners(slots: Iterable[int], ring_key: str, num: int, vnodes: int) -> tuple[int, ...]:
    """The first `num` slots (0: all) on the walk of `ring_key`, as the router would walk it.

    slots   the ranks of the replicas that there are
    vnodes  as the router's option
    """
    named = {f"slot-{slot}": slot for slot in slots}
    if not named:
        return ()
    ring = Ring(named, vnodes=vnodes, reach=len(named))
    walk = [named[name] for name in ring.walk(ring_key)]
    return tuple(walk[:num] if num else walk)
