"""The consistent-hash ring: which slots a key prefers, in which order.

Slots are the nodes. A slot is a replica's rank ("slot-3"), so a restarted or updated replica takes
its predecessor's place and no key moves. Adding a slot moves only keys that the new slot now owns,
about 1 / (slots + 1) of them; removing it sends each back.

The hash is ketama (md5): the same in every process, which Python's own `hash` is not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable

from uhashring import HashRing

_SLOT_BITS = 20


class Ring:
    """An immutable ring over `slots`; only its caches change.

    vnodes       positions a slot takes, times 4 (a ketama digest gives four points)
    reach        how many successors `walk` names: enough for a spill, few enough to keep
    cache_walks  walks kept, one a key, the least recently used dropped first

    Points are kept as sorted integers `point << 20 | slot index`: building sorts once, where
    `HashRing` inserts each point into a list (9 s at 1,000 slots), and a walk copies nothing.
    """

    def __init__(
        self,
        slots: Iterable[str],
        *,
        vnodes: int = 100,
        reach: int = 64,
        cache_walks: int = 32768,
        previous: Ring | None = None,
    ) -> None:
        """`previous` lends its slots' points, so that a change of one slot hashes one slot.

        Raises ValueError for a repeated slot or a size below 1.
        """
        if min(vnodes, reach, cache_walks) < 1:
            raise ValueError("vnodes, reach and cache_walks must be at least 1")
        self.slots = tuple(sorted(slots))
        if len(set(self.slots)) != len(self.slots) or len(self.slots) >= 1 << _SLOT_BITS:
            raise ValueError("a ring needs distinct slots, fewer than a million of them")
        self.vnodes = vnodes
        self._reach = min(reach, len(self.slots))
        self._cache_walks = cache_walks
        known: dict[str, tuple[int, ...]] = {}
        if previous is not None and previous.vnodes == vnodes:
            known = previous._points
        self._points: dict[str, tuple[int, ...]] = {
            slot: known.get(slot) or _slot_points(slot, vnodes) for slot in self.slots
        }
        self._ring = sorted(
            point << _SLOT_BITS | index
            for index, slot in enumerate(self.slots)
            for point in self._points[slot]
        )
        self._hash = HashRing(nodes=[], hash_fn="ketama").get_key
        self._walks: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.slots)

    def walk(self, key: str) -> tuple[str, ...]:
        """The key's owner, then its successors: distinct slots, `min(reach, len(ring))` of them."""
        walk = self._walks.get(key)
        if walk is not None:
            self._walks.move_to_end(key)
            return walk
        walk = self._walks[key] = self._find(key)
        if len(self._walks) > self._cache_walks:
            self._walks.popitem(last=False)
        return walk

    def _find(self, key: str) -> tuple[str, ...]:
        ring, mask = self._ring, (1 << _SLOT_BITS) - 1
        start = bisect_left(ring, (self._hash(key) + 1) << _SLOT_BITS)
        found: dict[int, None] = {}
        for offset in range(len(ring)):
            found[ring[(start + offset) % len(ring)] & mask] = None
            if len(found) == self._reach:
                break
        return tuple(self.slots[index] for index in found)

    def check(self) -> None:
        """Asserts what must hold between any two calls."""
        assert len(self._ring) == sum(map(len, self._points.values()))
        assert all(a < b for a, b in zip(self._ring, self._ring[1:], strict=False))
        assert len(self._walks) <= self._cache_walks
        for walk in self._walks.values():
            assert len(walk) == len(set(walk)) == self._reach
            assert set(walk) <= set(self.slots)


def _slot_points(slot: str, vnodes: int) -> tuple[int, ...]:
    """Where one slot stands: the points that it takes in a `HashRing` of any size."""
    ring = HashRing(nodes=[slot], vnodes=vnodes, hash_fn="ketama")
    return tuple(point for point, _ in ring.get_points())
