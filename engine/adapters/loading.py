"""COLD to HOST: which versions the loader fetches next, and where it lays them.

A bounded number at once, those of the tenant with the least account first. Room in host memory is
set aside before a load is sent; block copies that nobody needs there make way, cheapest to bring
back for their size first. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.adapters.host import HostPool
from engine.adapters.quotas import Quotas
from engine.adapters.version import State, Tier, Version
from engine.messages import Load

MAX_NEAR = 100_000


class Loading:
    """pool: the shared host memory. quotas: of its tenants in it. account: a tenant's account
    value, the order of loads. on_dropped: called with a version whose block has just left host
    memory.

    Of `max_loads` at once, at most `max_fetches` are of versions that have not been here before:
    those come from the store, which may be slow, and leave room for those that lie on the disk.
    """

    def __init__(
        self,
        pool: HostPool,
        quotas: Quotas,
        max_loads: int,
        max_fetches: int,
        account: Callable[[str], float],
        on_dropped: Callable[[Version], None],
    ) -> None:
        self.pool = pool
        self._quotas = quotas
        self._max_loads = max_loads
        self._max_fetches = max_fetches
        self._near: set[str] = set()
        self._account = account
        self._on_dropped = on_dropped
        self._wanted: dict[str, Version] = {}
        self._loading: dict[int, Version] = {}
        self._held: dict[str, Version] = {}
        self._worth: dict[str, float] = {}
        self._clock = 0.0
        self._next_id = 0

    def want(self, version: Version) -> None:
        """Load it when its turn comes."""
        version.state = State.WANTED
        self._wanted[version.key] = version

    def unwant(self, version: Version) -> None:
        """Nobody waits for it any more and its load has not been sent."""
        del self._wanted[version.key]

    def start(self, now: float) -> list[Load]:
        """The loads to send now."""
        loads: list[Load] = []
        held_up: set[str] = set()
        while len(self._loading) < self._max_loads:
            may_fetch = self._num_fetches < self._max_fetches
            able = [
                v
                for v in self._wanted.values()
                if v.ref.tenant not in held_up and (may_fetch or v.key in self._near)
            ]
            if not able:
                break
            version = min(able, key=self._turn)
            if not self._keep_quota(version):
                held_up.add(version.ref.tenant)
                continue
            offset = self._make_room(version.num_bytes)
            if offset is None:
                break
            loads.append(self._begin(version, offset, now))
        return loads

    def _begin(self, version: Version, offset: int, now: float) -> Load:
        del self._wanted[version.key]
        version.state = State.LOADING
        version.host_offset = offset
        version.load_id = self._next_id
        version.began_s = now
        self._next_id += 1
        self._loading[version.load_id] = version
        self._quotas.add(version.ref.tenant, version.num_bytes)
        return Load(version.load_id, version.ref, offset, version.num_bytes)

    def done(self, load_id: int, succeeded: bool) -> Version | None:
        """The version whose load has ended, its block now in host memory or, if it failed, to be
        dropped. None for a load that is not under way: an answer given twice."""
        version = self._loading.pop(load_id, None)
        if version is not None:
            self._learn(version.key, succeeded)
            version.state = State.HOST
            self._held[version.key] = version
            self.used(version)
        return version

    @property
    def _num_fetches(self) -> int:
        return sum(version.key not in self._near for version in self._loading.values())

    def _learn(self, key: str, is_near: bool) -> None:
        """A guess: the loader may have evicted it from the disk, and has others there from before
        this core began. Too many of them are forgotten all at once."""
        if not is_near:
            self._near.discard(key)
            return
        if len(self._near) >= MAX_NEAR:
            self._near.clear()
        self._near.add(key)

    def used(self, version: Version) -> None:
        """Its block was used: it is worth its cost again (GreedyDual-Size)."""
        self._worth[version.key] = self._clock + version.load_s / version.num_bytes

    def drop(self, version: Version) -> None:
        """Gives back the room of a block in host memory."""
        assert version.host_offset is not None
        self.pool.free(version.host_offset)
        version.host_offset = None
        del self._held[version.key]
        del self._worth[version.key]
        self._quotas.add(version.ref.tenant, -version.num_bytes)

    def check(self) -> None:
        self.pool.check()
        assert len(self._loading) <= self._max_loads and len(self._near) <= MAX_NEAR
        assert all(v.state is State.WANTED and v.host_offset is None for v in self._wanted.values())
        assert all(v.state is State.LOADING for v in self._loading.values())
        assert all(v.host_offset is not None for v in self._held.values())
        assert set(self._held) == set(self._worth)
        held = [*self._held.values(), *self._loading.values()]
        assert self.pool.num_blocks == len({v.host_offset for v in held}) == len(held)
        by_tenant: Counter[str] = Counter()
        for version in held:
            by_tenant[version.ref.tenant] += version.num_bytes
        self._quotas.check(by_tenant)

    def _make_room(self, num_bytes: int) -> int | None:
        """Offset of a free block, dropping others as needed; None (and nothing dropped in vain but
        for fragmentation) where those that may go are too small together."""
        offset = self.pool.allocate(num_bytes)
        if offset is not None:
            return offset
        droppable = sorted(
            (v for v in self._held.values() if is_droppable(v)), key=self._goes_first
        )
        if self.pool.num_free + sum(v.num_bytes for v in droppable) < num_bytes:
            return None
        for version in droppable:
            self._make_way(version)
            offset = self.pool.allocate(num_bytes)
            if offset is not None:
                return offset
        return None

    def _keep_quota(self, version: Version) -> bool:
        """The tenant's own blocks make way for its next one. False: it has too much that can't at
        present, and what is on its way to the device soon can."""
        tenant = version.ref.tenant
        if not self._quotas.excess(tenant, version.num_bytes):
            return True
        own = [v for v in (*self._held.values(), *self._loading.values()) if v.ref.tenant == tenant]
        for victim in sorted(filter(is_droppable, own), key=self._value):
            self._make_way(victim)
            if not self._quotas.excess(tenant, version.num_bytes):
                return True
        return all(v.host_offset is None or v.pin is not Tier.COLD for v in own)

    def _make_way(self, version: Version) -> None:
        self._clock = max(self._clock, self._value(version))
        self.drop(version)
        self._on_dropped(version)

    def _value(self, version: Version) -> float:
        return self._worth[version.key]

    def _goes_first(self, version: Version) -> tuple[bool, float]:
        return (version.ref.tenant not in self._quotas.over, self._value(version))

    def _turn(self, version: Version) -> tuple[bool, float, int]:
        return (version.num_waiting == 0, self._account(version.tenant), version.order)


def is_droppable(version: Version) -> bool:
    """On the device anyway, or wanted by nobody; and not pinned here."""
    if version.state is State.DEVICE:
        return version.pin is not Tier.HOST
    is_wanted = version.is_asked_for or version.pin is not Tier.COLD
    return version.state is State.HOST and not is_wanted
