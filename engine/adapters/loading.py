"""COLD to HOST: which versions the loader fetches next, and where it lays them.

A bounded number at once, those of the tenant with the least account first; of equals, who has
wanted one for longest. Room in host memory is set aside before a load is sent; block copies that
nobody needs there make way, cheapest to bring back for their size first. Standard library only.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from engine.adapters.blocks import Blocks
from engine.adapters.host import HostPool, block_bytes
from engine.adapters.quotas import Quotas
from engine.adapters.version import State, Tier, Version
from engine.adapters.wanted import Queue, Wanted
from engine.messages import Load
from engine.timeline import Journey
from engine.turns import Turns

MAX_NEAR = 100_000
LOOK_AGAIN_S = 0.25
"""Where there is no room: after so long the accounts may have made it a smaller version's turn."""
TurnsOf = Callable[[Queue, Callable[[str], bool]], Turns]
"""A round of serving a queue's tenants, which have requests; see `Accounts.turns`."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A version whose turn it was (`tenant`'s head of the queue `asked`, `near`), without room for
    it. Until there is more than `room` bytes, or the version leaves its place, or at `until_s`,
    another look finds the same."""

    version: Version
    tenant: str
    asked: bool
    near: bool
    room: int
    until_s: float


class Loading:
    """pool: the shared host memory. quotas: of its tenants in it. turns: of the tenants whose
    requests wait; account: a tenant's account value, the order of the others. on_dropped: called
    with a version whose block has just left host memory.

    Of `max_loads` at once, at most `max_fetches` are of versions that have not been here before:
    those come from the store, which may be slow, and leave room for those that lie on the disk.
    """

    def __init__(
        self,
        pool: HostPool,
        quotas: Quotas,
        max_loads: int,
        max_fetches: int,
        turns: TurnsOf,
        account: Callable[[str], float],
        on_dropped: Callable[[Version], None],
    ) -> None:
        self.pool = pool
        self._quotas = quotas
        self._max_loads = max_loads
        self._max_fetches = max_fetches
        self._near: set[str] = set()
        self._displaced: set[str] = set()
        self._turns = turns
        self._account = account
        self._on_dropped = on_dropped
        self._wanted = Wanted(self._near.__contains__)
        self._loading: dict[int, Version] = {}
        self._blocks = Blocks()
        self._next_id = 0
        self._held_up: dict[str, set[str]] = {}  # by the owner of what is too much
        self._shortage: Shortage | None = None

    def want(self, version: Version) -> None:
        """Load it when its turn comes."""
        version.state = State.WANTED
        self._wanted.add(version)

    def unwant(self, version: Version) -> None:
        """Nobody waits for it any more and its load has not been sent."""
        self._wanted.remove(version)
        self._wanted.release(version.tenant)

    def changed(self, tenant: str) -> None:
        """What it holds, or may hold, of host memory is another: it may have a turn again."""
        for waiting in self._held_up.pop(tenant, ()):
            self._wanted.release(waiting)

    def start(self, now: float) -> list[Load]:
        """The loads to send now. A round of turns is made only where something may have changed:
        tenants at their quota are left out until something of theirs has, and all of them while
        there is no more room than there was. So many steps that start nothing cost as one."""
        if self._shortage is not None and self._lasts(self._shortage, now):
            return []
        self._shortage = None
        loads: list[Load] = []
        for asked in (True, False):
            for near in (False, True):
                queue = self._wanted.queue(asked=asked, near=near)
                if self._shortage is None and queue.tenants and not self._is_full(near):
                    self._start(queue, asked, near, loads, now)
        return loads

    def _start(self, queue: Queue, asked: bool, near: bool, loads: list[Load], now: float) -> None:
        """Those of a queue, as far as they may start."""
        turns = self._round(queue, asked)
        while not self._is_full(near):
            tenant = turns.next(lambda tenant: -queue.age(tenant))
            if tenant is None:
                break
            version = queue.head(tenant)
            if version is None:
                continue
            if not self._keep_quota(version):
                self._wanted.hold(tenant)
                self._held_up.setdefault(version.ref.tenant, set()).add(tenant)
                continue
            offset = self._make_room(version)
            if offset is None:
                room = max(self._room, block_bytes(version.num_bytes) - 1)
                until_s = now + LOOK_AGAIN_S
                self._shortage = Shortage(version, tenant, asked, near, room, until_s)
                break
            loads.append(self._begin(version, offset, now))
            turns.again(tenant)

    def _lasts(self, shortage: Shortage, now: float) -> bool:
        if now >= shortage.until_s or self._room > shortage.room:
            return False
        requests = self._wanted.queue(asked=True, near=False)
        if not shortage.asked and requests.tenants and not self._is_full(near=False):
            return False
        queue = self._wanted.queue(asked=shortage.asked, near=shortage.near)
        return queue.head(shortage.tenant) is shortage.version

    @property
    def _room(self) -> int:
        """Bytes that are free or would come free, in pieces or not."""
        return self.pool.num_free + self._blocks.num_droppable_bytes

    def _round(self, queue: Queue, asked: bool) -> Turns:
        def may(tenant: str) -> bool:
            return tenant in queue.tenants

        if asked:
            return self._turns(queue, may)
        entries = sorted((self._account(tenant), tenant) for tenant in queue.tenants)
        return Turns(entries, self._account, may, 0.0)

    def _is_full(self, near: bool) -> bool:
        return len(self._loading) == self._max_loads or not (near or self._may_fetch)

    def _begin(self, version: Version, offset: int, now: float) -> Load:
        self._wanted.remove(version)
        version.state = State.LOADING
        version.host_offset = offset
        version.load_id = self._next_id
        version.began_s = now
        version.journey = Journey(self._next_id, began_s=now)
        version.cause = version.wish
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
            self.used(version)
        return version

    @property
    def _may_fetch(self) -> bool:
        num_fetches = sum(version.key not in self._near for version in self._loading.values())
        return num_fetches < self._max_fetches

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
        self._blocks.used(version)
        self.changed(version.ref.tenant)

    def refresh(self, version: Version) -> None:
        """Call after what `blocks.is_droppable` looks at has changed, of a version with a block or
        without one."""
        self._blocks.refresh(version)
        self._wanted.release(version.tenant)
        self.changed(version.ref.tenant)

    def drop(self, version: Version) -> None:
        """Gives back the room of a block in host memory."""
        assert version.host_offset is not None
        self._blocks.remove(version)
        self.pool.free(version.host_offset)
        version.host_offset = None
        self._quotas.add(version.ref.tenant, -version.num_bytes)
        self.changed(version.ref.tenant)

    def check(self) -> None:
        self.pool.check()
        assert len(self._loading) <= self._max_loads and len(self._near) <= MAX_NEAR
        assert all(v.state is State.WANTED and v.host_offset is None for v in self._wanted)
        self._wanted.check()
        assert all(v.state is State.LOADING for v in self._loading.values())
        self._blocks.check()
        held = [*self._blocks, *self._loading.values()]
        assert self.pool.num_blocks == len({v.host_offset for v in held}) == len(held)
        by_tenant: Counter[str] = Counter()
        for version in held:
            by_tenant[version.ref.tenant] += version.num_bytes
        self._quotas.check(by_tenant)
        assert set(self._wanted.held) <= set[str]().union(*self._held_up.values())
        for owner in self._held_up:
            assert not self._blocks.cheapest_of({owner}) and self._will_have_room(owner)

    def is_charged(self, key: str) -> bool:
        """Whether its tenant pays for the load that has just ended: not where its block had made
        way for another tenant's."""
        if key in self._displaced:
            self._displaced.remove(key)
            return False
        return True

    def _make_room(self, version: Version) -> int | None:
        """Offset of a free block for it, dropping others as needed; None (and nothing dropped in
        vain but for fragmentation) where those that may go are too small together."""
        num_bytes = version.num_bytes
        offset = self.pool.allocate(num_bytes)
        if offset is not None:
            return offset
        if self._room < block_bytes(num_bytes):
            return None
        while (victim := self._blocks.cheapest(self._quotas.over)) is not None:
            if victim.ref.tenant != version.ref.tenant:
                self._displace(victim.key)
            self._make_way(victim)
            offset = self.pool.allocate(num_bytes)
            if offset is not None:
                return offset
        return None

    def _keep_quota(self, version: Version) -> bool:
        """The tenant's own blocks make way for its next one. False: it has too much that can't at
        present, and what is on its way to the device soon can."""
        tenant = version.ref.tenant
        while self._quotas.excess(tenant, version.num_bytes):
            victim = self._blocks.cheapest_of({tenant})
            if victim is None:
                return not self._will_have_room(tenant)
            self._make_way(victim)
        return True

    def _will_have_room(self, tenant: str) -> bool:
        """It has a block, or one to come, that may leave host memory at some time."""
        coming = (v for v in self._loading.values() if v.ref.tenant == tenant)
        own = itertools.chain(self._blocks.of(tenant), coming)
        return any(v.pin is Tier.COLD for v in own)

    def _displace(self, key: str) -> None:
        if len(self._displaced) >= MAX_NEAR:
            self._displaced.clear()
        self._displaced.add(key)

    def _make_way(self, version: Version) -> None:
        self._blocks.age_to(version)
        self.drop(version)
        self._on_dropped(version)
