"""Which adapter versions are where, and on their way where. Decisions only; standard library only.

    COLD --load--> HOST --claim, moves, upload--> DEVICE

The cache owns a load, not whoever asked first: however many wait for a version it is loaded once,
and goes on when some of them leave. Loads and uploads leave as instructions (`take_loads`,
`take_uploads`); their ends come back as events (`on_loaded`, `on_uploaded`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from math import inf

from engine.accounts import Accounts
from engine.adapters.failures import mismatch
from engine.adapters.host import HostPool
from engine.adapters.lease import Lease
from engine.adapters.lifecycle import Lifecycle
from engine.adapters.loading import Loading
from engine.adapters.obstacles import Obstacles
from engine.adapters.pins import Pins
from engine.adapters.promotion import Promotion, UploadOrder
from engine.adapters.quotas import Quotas
from engine.adapters.residency import is_at
from engine.adapters.residents import Residents
from engine.adapters.version import State, Tier, Version
from engine.adapters.yielding import Yielding
from engine.arena import Arena
from engine.config import AdapterConfig
from engine.errors import ErrorInfo
from engine.eviction import GreedyDualSize
from engine.messages import Discard, Drop, Load, LoadDone, Pin, Prefetch, Residency
from engine.plan import TableEntry
from engine.prefix import PrefixTree
from engine.reclaim import Reclaim
from engine.timeline import Journey
from engine.types import AdapterRef, Tenant
from engine.usage import UsageBook

__all__ = ["AdapterCache", "Lease", "Tier", "UploadOrder"]


class AdapterCache:
    """itemsize: bytes of one element in the serving dtype.
    accounts: those of the tenant that has been served least go first.
    idle, prefix: shared with the prefix cache, since eviction is over both kinds.
    """

    def __init__(
        self,
        config: AdapterConfig,
        arena: Arena,
        idle: GreedyDualSize[Hashable],
        prefix: PrefixTree,
        pool: HostPool,
        itemsize: int,
        accounts: Accounts,
    ) -> None:
        self._accounts = accounts
        self._on_host, self._on_device = Quotas(), Quotas()
        self.usage = UsageBook(self._on_host.byte_seconds, self._on_device.byte_seconds)
        slack = accounts.config.locality_slack_tokens
        self._life = life = Lifecycle(arena, itemsize)
        self._residents = Residents(arena, idle, self._on_device, life.on_evicted)
        self.reclaim = Reclaim(arena, idle, prefix, self._residents, self._on_device)
        self._loading = Loading(
            pool,
            self._on_host,
            config.max_loads,
            config.max_fetches,
            lambda queue, may: accounts.turns(
                queue.tenants, aged=queue, is_candidate=may, slack=0.0
            ),
            self._account,
            life.on_dropped,
        )
        self.yielding = Yielding(self._residents, self._on_device, config, self._account, slack)
        self._promotion = Promotion(
            arena,
            self._residents,
            self.reclaim,
            self.yielding,
            config,
            self._account,
            self._loading.refresh,
        )
        life.begin(self._loading, self._promotion, self._residents)
        self._pins = Pins(arena, pool, life.versions, life.changed, self._bring)
        self.obstacles = Obstacles(config, arena, pool, self._pins, life.counts, itemsize)
        self._loads: list[Load] = []
        self._uploads: list[UploadOrder] = []
        self.num_loads = 0
        self.counts = life.counts

    # What requests ask

    def want(self, ref: AdapterRef, tenant: Tenant) -> None:
        """One more request, of this tenant, waits for it."""
        self.learn(tenant)
        version = self._life.version(ref)
        version.num_waiting += 1
        if version.num_waiting == 1:
            version.tenant = tenant.id
            self._life.approach(version, Tier.DEVICE)

    def unwant(self, key: str) -> None:
        """One request waits no longer. Nothing happens for a version whose load has failed."""
        version = self._life.versions.get(key)
        if version is None:
            return
        version.num_waiting -= 1
        if version.num_waiting:
            return
        self._life.refresh(version)
        if version.is_ordered:
            return
        if version.state is State.WANTED:
            self._loading.unwant(version)
            self._life.forget(version)
        elif version.state is State.HOST:
            self._promotion.unwant(version)

    def learn(self, tenant: Tenant) -> None:
        """The tenant's quotas, from now on."""
        if self._on_host.limit(tenant.id, tenant.max_host_bytes):
            self._loading.changed(tenant.id)
        self._on_device.limit(tenant.id, tenant.max_device_bytes)

    def prefetch(self, wish: Prefetch, now: float) -> None:
        """Requests for it are likely: bring it nearer, see `messages.Prefetch`."""
        if wish.tenant is not None:
            self.learn(wish.tenant)
        tier = Tier.DEVICE if wish.to_device else Tier.HOST
        self._bring(wish.ref, tier, now, wish.is_ordered)

    def set_pins(self, pins: Iterable[Pin]) -> None:
        """All pins of this replica from now on."""
        self._pins.set(pins)

    def retire(self, drop: Drop, now: float) -> None:
        """See `messages.Drop`; requests are the caller's."""
        self.obstacles.retired.add(drop, now)
        self._pins.drop(drop.ref.key)

    def acquire(self, ref: AdapterRef) -> Lease | None:
        """The right to use it, if it is on the device and admission to it is open."""
        version = self._life.versions.get(ref.key)
        if version is None or not version.is_open:
            return None
        version.num_leases += 1
        self._residents.refresh(version)
        if version.host_offset is not None:
            self._loading.used(version)
        return Lease(ref.key, version.adapter)

    def release(self, lease: Lease) -> None:
        version = self._life.versions[lease.key]
        version.num_leases -= 1
        self._residents.refresh(version)

    def journey(self, key: str, since_s: float) -> Journey | None:
        """The version's way to the device, if it has not been there all the time since then."""
        return self._life.journey(key, since_s)

    def tier(self, ref: AdapterRef) -> Tier:
        version = self._life.versions.get(ref.key)
        return Tier.COLD if version is None else version.tier

    # What happens

    def on_loaded(self, done: LoadDone, now: float) -> ErrorInfo | None:
        """A load has ended. An error is for all that wait for this version, and remembered."""
        version = self._loading.done(done.load_id, done.error is None)
        if version is None:
            return None
        self._life.arrived(version, done, now)
        error = done.error or mismatch(version, done)
        self.counts.loaded(version, done, error)
        if error is not None:
            self._loading.drop(version)
            self._life.forget(version)
            return self.obstacles.failures.add(version.key, error, done.permanent, now)
        self.obstacles.failures.succeeded(version.key)
        if self._loading.is_charged(version.key):
            self._accounts.loaded(version.ref.tenant, version.num_bytes)
        self.usage.of(version.ref.tenant).loaded_bytes += version.num_bytes
        version.load_s = done.seconds
        version.layout = done.layout
        version.is_ordered = version.is_ordered and version.goal is Tier.DEVICE
        self._loading.used(version)
        if version.goal is Tier.DEVICE:
            self._promotion.want(version)
        return None

    def on_uploaded(self, key: str, now: float) -> None:
        self.counts.uploaded(self._promotion.uploaded(key, now))
        self._life.report.touch(key)

    def advance(self, now: float, plan_id: int) -> None:
        """Decides what can go on. plan_id: the last launched plan."""
        self.pass_time(now)
        self.counts.begin_step()
        for ref in self.obstacles.retired.leaving(self._life.versions, now):
            self._life.drop(ref, plan_id)
        self._pins.advance(now)
        self._uploads += self._promotion.advance(now, plan_id)
        loads = self._loading.start(now)
        self.num_loads += len(loads)
        for load in loads:
            self._life.report.touch(load.ref.key)
        self._loads += loads

    def pass_time(self, now: float) -> None:
        """For how long tenants' adapters have been where they are is counted up to `now`."""
        self._on_host.byte_seconds.pass_time(now)
        self._on_device.byte_seconds.pass_time(now)

    # Instructions

    def take_loads(self) -> list[Load]:
        loads, self._loads = self._loads, []
        return loads

    def take_uploads(self) -> list[UploadOrder]:
        uploads, self._uploads = self._uploads, []
        return uploads

    def take_discards(self) -> list[Discard]:
        return self._life.take_discards()

    def take_changes(self) -> dict[str, bool]:
        """Versions whose admission has opened (True) or closed since the last call."""
        return self._residents.take_changes()

    def take_entries(self, moved: Iterable[int]) -> tuple[TableEntry, ...]:
        """What the next plan must tell the device's table. `moved`: indices whose run it moves."""
        return self._residents.take_entries(moved)

    def take_residency(self, now: float) -> Residency | None:
        """Who has changed places since the last call."""
        return self._life.report.take(self._life.versions, now)

    # Pressure

    @property
    def is_promoting(self) -> bool:
        """A version waits for room on the device, or is on its way there."""
        return self._promotion.is_active

    @property
    def starved(self) -> str | None:
        """Whose adapter has long waited for room that sequences hold: requests of tenants that are
        not behind this one wait, so that the room comes free."""
        version = self._promotion.starved
        return None if version is None else version.tenant

    def check(self) -> None:
        self._residents.check()
        self._loading.check()
        self._promotion.check()
        self._pins.check()
        self._life.report.check(self._life.versions)
        for key, version in self._life.versions.items():
            assert version.key == key and version.num_waiting >= 0 and version.num_leases >= 0
            assert version.num_leases == 0 or version.state is State.DEVICE
            assert version.state is State.DEVICE or version.closed_since_s is None
            has_block = version.host_offset is not None
            assert has_block or version.state in (State.WANTED, State.DEVICE)
        residents = [v for v in self._life.versions.values() if v.state is State.DEVICE]
        assert len(residents) == len(list(self._residents))

    def check_demand(self, waiting: Mapping[str, int], leases: Mapping[str, int]) -> None:
        """The requests that wait for each version, and those that use it, are counted right."""
        versions = self._life.versions.values()
        assert {v.key: v.num_waiting for v in versions if v.num_waiting} == dict(waiting)
        assert {v.key: v.num_leases for v in versions if v.num_leases} == dict(leases)

    def _account(self, tenant: str) -> float:
        """The account's value; of a tenant that never had a request, after all others'."""
        try:
            return self._accounts.standing(tenant)
        except KeyError:
            return inf

    def _bring(
        self, ref: AdapterRef, tier: Tier, now: float, is_ordered: bool = True
    ) -> Version | None:
        """Towards that tier though no request waits. None for what can't be served."""
        if self.obstacles.of(ref, now) is not None:
            return None
        version = self._life.version(ref)
        if version.state is State.DEVICE:
            self._residents.touch(version)
        elif not is_at(version, tier):
            version.is_ordered = version.is_ordered or is_ordered
            self._life.approach(version, tier)
        return version
