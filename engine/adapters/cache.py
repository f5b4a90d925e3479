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
from engine.adapters.failures import Failures
from engine.adapters.host import HostPool
from engine.adapters.lease import Lease
from engine.adapters.loading import Loading
from engine.adapters.promotion import Promotion, UploadOrder
from engine.adapters.residents import Residents
from engine.adapters.version import State, Tier, Version
from engine.arena import Arena
from engine.config import AdapterConfig
from engine.errors import AdapterRejected, AdapterUnavailable, ErrorInfo
from engine.eviction import GreedyDualSize
from engine.messages import Load, LoadDone, Residency
from engine.plan import TableEntry
from engine.prefix import PrefixTree
from engine.reclaim import Reclaim
from engine.types import AdapterRef

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
        self._arena = arena
        self._pool = pool
        self._itemsize = itemsize
        self._accounts = accounts
        self._versions: dict[str, Version] = {}
        self._failures = Failures(config.failure_ttl_s, config.permanent_failure_ttl_s)
        self._residents = Residents(arena, idle, self._on_evicted)
        self.reclaim = Reclaim(arena, idle, prefix, self._residents)
        self._loading = Loading(pool, config.max_loads, self._account, self._on_dropped)
        self._promotion = Promotion(
            arena,
            self._residents,
            self.reclaim,
            config,
            self._account,
            accounts.config.locality_slack_tokens,
        )
        self._loads: list[Load] = []
        self._uploads: list[UploadOrder] = []
        self._num_wishes = 0
        self._has_moved = False
        self._reported = Residency()
        self.num_loads = 0

    # What requests ask

    def refusal(self, ref: AdapterRef) -> ErrorInfo | None:
        """Why this version can never be served here, with the numbers; None if it can."""
        num_bytes = ref.num_elements * self._itemsize
        room = self._arena.max_adapter_pages * self._arena.page_bytes
        where = "on the device"
        if self._pool.fits(num_bytes):
            if self._arena.pages_for(num_bytes) <= self._arena.max_adapter_pages:
                return None
        else:
            room, where = self._pool.num_bytes, "in host memory"
        message = (
            f"Adapter {ref.name!r} takes {num_bytes} bytes and adapters have {room} {where}."
            " Use a lower rank or fewer modules, or give it more memory."
        )
        return AdapterRejected(message, code="adapter_too_large").info()

    def failure(self, ref: AdapterRef, now: float) -> ErrorInfo | None:
        """How its last load failed, as long as that is remembered."""
        return self._failures.get(ref.key, now)

    def want(self, ref: AdapterRef, tenant: str) -> None:
        """One more request, of this tenant, waits for it."""
        version = self._version(ref)
        version.num_waiting += 1
        if version.num_waiting == 1:
            version.tenant = tenant
            self._approach(version)

    def unwant(self, key: str) -> None:
        """One request waits no longer. Nothing happens for a version whose load has failed."""
        version = self._versions.get(key)
        if version is None:
            return
        version.num_waiting -= 1
        if version.num_waiting:
            return
        if version.state is State.WANTED:
            self._loading.unwant(version)
            del self._versions[key]
        elif version.state is State.HOST:
            self._promotion.unwant(version)
        elif version.state is State.DEVICE:
            self._residents.refresh(version)

    def prefetch(self, ref: AdapterRef, now: float) -> None:
        """Requests for it are likely: bring it as near as it gets without taking others' place."""
        if self.failure(ref, now) is None and self.refusal(ref) is None:
            self._approach(self._version(ref))

    def acquire(self, ref: AdapterRef) -> Lease | None:
        """The right to use it, if it is on the device and admission to it is open."""
        version = self._versions.get(ref.key)
        if version is None or not version.is_open:
            return None
        version.num_leases += 1
        self._residents.refresh(version)
        if version.host_offset is not None:
            self._loading.used(version)
        return Lease(ref.key, version.adapter)

    def release(self, lease: Lease) -> None:
        version = self._versions[lease.key]
        version.num_leases -= 1
        self._residents.refresh(version)

    def tier(self, ref: AdapterRef) -> Tier:
        version = self._versions.get(ref.key)
        return Tier.COLD if version is None else version.tier

    # What happens

    def on_loaded(self, done: LoadDone, now: float) -> ErrorInfo | None:
        """A load has ended. An error is for all that wait for this version, and remembered."""
        version = self._loading.done(done.load_id)
        if version is None:
            return None
        self._has_moved = True
        error = done.error or _mismatch(version, done)
        if error is not None:
            self._loading.drop(version)
            del self._versions[version.key]
            self._failures.add(version.key, error, done.permanent, now)
            return error
        version.load_s = done.seconds
        version.layout = done.layout
        self._loading.used(version)
        self._promotion.want(version)
        return None

    def on_uploaded(self, key: str, now: float) -> None:
        self._promotion.uploaded(key, now)
        self._has_moved = True

    def advance(self, now: float, plan_id: int) -> None:
        """Decides what can go on. plan_id: the last launched plan."""
        uploads = self._promotion.advance(now, plan_id)
        loads = self._loading.start(now)
        self.num_loads += len(loads)
        self._has_moved = self._has_moved or bool(loads)
        self._uploads += uploads
        self._loads += loads

    # Instructions

    def take_loads(self) -> list[Load]:
        loads, self._loads = self._loads, []
        return loads

    def take_uploads(self) -> list[UploadOrder]:
        uploads, self._uploads = self._uploads, []
        return uploads

    def take_changes(self) -> dict[str, bool]:
        """Versions whose admission has opened (True) or closed since the last call."""
        return self._residents.take_changes()

    def take_entries(self, moved: Iterable[int]) -> tuple[TableEntry, ...]:
        """What the next plan must tell the device's table. `moved`: indices whose run it moves."""
        return self._residents.take_entries(moved)

    def take_residency(self) -> Residency | None:
        """Who is where, if that has changed since the last call."""
        if not self._has_moved:
            return None
        self._has_moved = False
        versions = self._versions.values()
        residency = Residency(
            loading=tuple(v.key for v in versions if v.is_loading),
            host=tuple(v.key for v in versions if v.host_offset is not None and not v.is_loading),
            device=tuple(v.key for v in versions if v.state is State.DEVICE),
        )
        if residency == self._reported:
            return None
        self._reported = residency
        return residency

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

    def overdue(self, now: float) -> list[str]:
        """Versions that were to yield and whose sequences have not drained in time."""
        return [version.key for version in self._promotion.overdue(now)]

    def check(self) -> None:
        self._residents.check()
        self._loading.check()
        self._promotion.check()
        for key, version in self._versions.items():
            assert version.key == key and version.num_waiting >= 0 and version.num_leases >= 0
            assert version.num_leases == 0 or version.state is State.DEVICE
            assert version.state is State.DEVICE or version.closed_since_s is None
            has_block = version.host_offset is not None
            assert has_block or version.state in (State.WANTED, State.DEVICE)
        residents = [v for v in self._versions.values() if v.state is State.DEVICE]
        assert len(residents) == len(list(self._residents))

    def check_demand(self, waiting: Mapping[str, int], leases: Mapping[str, int]) -> None:
        """The requests that wait for each version, and those that use it, are counted right."""
        versions = self._versions.values()
        assert {v.key: v.num_waiting for v in versions if v.num_waiting} == dict(waiting)
        assert {v.key: v.num_leases for v in versions if v.num_leases} == dict(leases)

    def _account(self, tenant: str) -> float:
        """The account's value; of a tenant that never had a request, after all others'."""
        try:
            return self._accounts.account(tenant).value
        except KeyError:
            return inf

    def _version(self, ref: AdapterRef) -> Version:
        version = self._versions.get(ref.key)
        if version is None:
            num_bytes = ref.num_elements * self._itemsize
            version = Version(ref, num_bytes, self._arena.pages_for(num_bytes), ref.tenant)
            self._versions[ref.key] = version
        return version

    def _approach(self, version: Version) -> None:
        """Its next step towards the device, behind those who already wait for theirs."""
        version.order = self._num_wishes
        self._num_wishes += 1
        if version.state is State.HOST:
            self._promotion.want(version)
        elif version.state is State.WANTED:
            self._loading.want(version)
        elif version.state is State.DEVICE:
            self._residents.refresh(version)

    def _on_evicted(self, version: Version) -> None:
        self._has_moved = True
        if version.host_offset is None:
            version.state = State.WANTED
        if version.num_waiting:
            self._approach(version)
        elif version.state is State.WANTED:
            del self._versions[version.key]

    def _on_dropped(self, version: Version) -> None:
        """Its block has left host memory."""
        self._has_moved = True
        if version.state is State.HOST:
            self._promotion.unwant(version)
            del self._versions[version.key]


def _mismatch(version: Version, done: LoadDone) -> ErrorInfo | None:
    """A load without an error must have laid out exactly the block that the record promises."""
    if done.layout is None:
        message = f"The loader gave no layout for adapter {version.ref.name!r}. Publish it again."
        return AdapterUnavailable(message).info()
    if done.layout.num_elements != version.ref.num_elements:
        message = (
            f"Adapter {version.ref.name!r} has {done.layout.num_elements} elements and its record"
            f" says {version.ref.num_elements}. Publish it again."
        )
        return AdapterRejected(message).info()
    return None
