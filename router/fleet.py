"""Who is in the fleet: replicas, the ring slot that each holds, and what each has in memory. Pure.

A replica publishes its slot in two ways: once when it starts (`metadata`), and live with its
routing stats. The live one wins: Ray compacts ranks after a rollout, and what was captured at the
start goes stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_RESIDENT = ("device", "host", "loading", "pinned")


@dataclass(frozen=True)
class Member:
    """One replica as it last described itself. Malformed fields count as absent.

    replica      its unique id
    cap          the most requests it takes at once
    stats        {"slot": rank, "rows": sequences in one pass, "device" | "host" | "loading" |
                 "pinned": [ref.key, ...]}, refreshed about once a second
    metadata     the same fields as far as it knew them when it started
    """

    replica: str
    cap: int
    stats: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slot(self) -> int | None:
        live = _count(self.stats.get("slot"))
        return _count(self.metadata.get("slot")) if live is None else live

    @property
    def rows(self) -> int | None:
        live = _count(self.stats.get("rows"))
        return _count(self.metadata.get("rows")) if live is None else live

    @property
    def is_live(self) -> bool:
        """Its slot is the one it holds now, not the one it started with."""
        return _count(self.stats.get("slot")) is not None

    @cached_property
    def keys(self) -> frozenset[str]:
        """`ref.key` of the adapter versions that it has or is loading."""
        lists = [v for name in _RESIDENT if isinstance(v := self.stats.get(name), list | tuple)]
        return frozenset(key for keys in lists for key in keys if isinstance(key, str))


class Fleet:
    """A snapshot of the members and their slots. Made anew at every change; never edited.

    members  by replica id, in slot order: the same in every process
    slots    slot name -> replica id, what the ring is made of
    """

    def __init__(self, members: Iterable[Member]) -> None:
        """A newcomer that has no slot yet joins the ring when it has one, lest its keys move twice;
        until then it takes base requests. Where nobody has a slot, unique ids stand in.

        Two replicas can claim one slot for a moment during a rollout: the one that says so live
        keeps the name (of two such, the lesser id), the other gets the name with its id.
        """
        ordered = sorted(members, key=_slot_order)
        self.members = {m.replica: m for m in ordered}
        self.slots: dict[str, str] = {}
        nobody_has_one = all(m.slot is None for m in ordered)
        for member in ordered:
            if member.slot is None:
                if nobody_has_one:
                    self.slots[member.replica] = member.replica
                continue
            name = f"slot-{member.slot}"
            self.slots[f"{name}/{member.replica}" if name in self.slots else name] = member.replica

    @property
    def caps(self) -> dict[str, int]:
        return {m.replica: m.cap for m in self.members.values()}

    @property
    def rows(self) -> int | None:
        """Rows of the smallest replica that has said so."""
        return min((m.rows for m in self.members.values() if m.rows is not None), default=None)

    def holds(self, replica: str, key: str) -> bool:
        member = self.members.get(replica)
        return member is not None and key in member.keys

    def check(self) -> None:
        """Asserts what must hold of any snapshot."""
        on_ring = list(self.slots.values())
        assert len(on_ring) == len(set(on_ring))
        assert set(on_ring) <= self.members.keys()
        assert bool(on_ring) == bool(self.members)
        for replica, member in self.members.items():
            assert replica == member.replica
            assert replica in on_ring or member.slot is None


def _slot_order(member: Member) -> tuple[bool, int, bool, str]:
    slot = member.slot
    return (slot is None, -1 if slot is None else slot, not member.is_live, member.replica)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
