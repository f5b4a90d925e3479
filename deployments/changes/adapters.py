"""What an adapter's names stand for, changed in the registry: one compare-and-set each.

Blocking; an event loop calls it from a thread. No torch: every ingress promotes, rolls back and
retires by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from deployments.canary.trial_counts import Trial
from deployments.changes.compare_and_set import update
from deployments.changes.placing import Placing
from deployments.control.sidecars import Sidecars
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import CANARY, PRODUCTION
from deployments.registry.records import ADAPTERS, TenantRecord, adapter_key, check_name
from deployments.registry.registry import Registry
from deployments.registry.version_record import VersionRecord
from engine.adapters.digest import digest
from engine.adapters.store import (
    CONFIG,
    MANIFEST,
    TENSORS,
    ObjectMissing,
    ObjectStore,
    object_prefix,
)
from engine.errors import Conflict, NotFound, PermissionDenied
from engine.types import AdapterRef


class Adapters:
    """keep_versions: live versions of an adapter that no alias names. clock: Unix seconds."""

    def __init__(
        self,
        registry: Registry,
        store: ObjectStore,
        *,
        keep_versions: int,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._store = store
        self._sidecars = Sidecars(store)
        self._keep = keep_versions
        self._clock = clock

    def find(self, tenant: str, name: str) -> AdapterRecord | None:
        check_name(tenant, "tenant")
        entry = self._registry.get(adapter_key(tenant, check_name(name, "adapter")))
        return None if entry is None else AdapterRecord.from_value(entry.value)

    def get(self, tenant: str, name: str) -> AdapterRecord:
        """Raises InvalidRequest, NotFound."""
        record = self.find(tenant, name)
        if record is None:
            raise _unknown(tenant, name)
        return record

    def page(
        self, tenant: str | None, after: str, limit: int | None
    ) -> tuple[list[AdapterRecord], bool]:
        """The first `limit` records whose model (`tenant/name`) sorts behind `after`, a tenant's or
        all; and whether there are more."""
        prefix = ADAPTERS if tenant is None else f"{ADAPTERS}{check_name(tenant, 'tenant')}/"
        start = f"{ADAPTERS}{after}" if after else ""
        listing = self._registry.list(
            prefix, after=start, limit=None if limit is None else limit + 1
        )
        records = [AdapterRecord.from_value(e.value) for e in listing.entries]
        return records[:limit], limit is not None and len(records) > limit

    def add(self, version: VersionRecord, placing: Placing, tenant: TenantRecord) -> AdapterRecord:
        """`version`, whose objects are stored, is one of its adapter from now on, under the name
        that `placing` gives. Versions that nothing names any more are retired beyond the newest.

        Raises InvalidRequest, Conflict, PermissionDenied (over the tenant's quota).
        """
        ref = version.ref

        def added(record: AdapterRecord) -> AdapterRecord:
            known = record.version(ref.digest)
            is_new = known is None or not known.live or known.ref != ref
            if is_new:  # checked before it was stored, too; but others may have published meanwhile
                self.check_quota(tenant, ref)
            if is_new or version.probes:
                record = record.with_version(version)
            now = self._clock()
            return placing.of(record, ref.digest, now).collected(self._keep, now)

        return self._renamed(ref.tenant, ref.name, added, may_make=True)

    def promote(
        self, tenant: str, name: str, version: str, placing: Placing, *, expect: str | None = None
    ) -> AdapterRecord:
        """Give `version` (a digest's beginning, or an alias) the name that `placing` says.

        expect  the digest (or its beginning) that the name must stand for until now

        Raises NotFound; Conflict where the version is retired or its object isn't whole, where
        `expect` is not met or others keep changing the record.
        """

        def promoted(record: AdapterRecord) -> AdapterRecord:
            _check_expected(record, placing.alias or PRODUCTION, expect)
            found = record.find(version)
            self._check_whole(found)
            now = self._clock()
            return placing.of(record, found.ref.digest, now).collected(self._keep, now)

        return self._renamed(tenant, name, promoted)

    def roll_back(
        self,
        tenant: str,
        name: str,
        alias: str = PRODUCTION,
        *,
        expect: str | None = None,
        why: str = "",
    ) -> AdapterRecord:
        """`alias` stands for what it stood for before; a canary ends, and the record says why.
        Raises as `promote`."""

        def rolled_back(record: AdapterRecord) -> AdapterRecord:
            _check_expected(record, alias, expect)
            back = record.rolled_back(alias, at_s=self._clock(), why=why)
            if alias != CANARY:
                self._check_whole(back.find(back.aliases[alias].digest))
            return back

        return self._renamed(tenant, name, rolled_back)

    def end_trial(self, trial: Trial, why: str) -> bool:
        """The canary of `trial` ends, and the record says why; False, and nothing is changed, where
        it is not the trial that runs. Raises Conflict where others keep changing the record."""
        tenant, _, name = trial.model.partition("/")
        runs = False

        def ended(record: AdapterRecord) -> AdapterRecord:
            nonlocal runs
            runs = Trial.of(record) == trial
            return record.rolled_back(CANARY, at_s=self._clock(), why=why) if runs else record

        with suppress(NotFound):
            self._update(tenant, name, ended)
        return runs

    def remove_alias(self, tenant: str, name: str, alias: str) -> AdapterRecord:
        """Raises NotFound, Conflict."""
        return self._renamed(tenant, name, lambda record: record.without_alias(alias))

    def retire(self, tenant: str, name: str, by: str, version: str | None = None) -> AdapterRecord:
        """The adapter, or one version of it, stands for nothing from now on; tombstones stay.

        Retiring twice is no error. Raises NotFound, Conflict (an alias stands for the version).
        """

        def retired(record: AdapterRecord) -> AdapterRecord:
            if version is None:
                return record.retired(self._clock(), by)
            if record.tombstones(version):
                return record
            return record.retired_version(record.find(version).ref.digest, self._clock(), by)

        return self._update(tenant, name, retired)

    def swept(self, tenant: str, name: str, digests: Iterable[str]) -> None:
        """The objects of these are gone: a record need not remember them."""
        removed = frozenset(digests)
        self._update(tenant, name, lambda record: record.swept(removed))

    def check_quota(self, tenant: TenantRecord, ref: AdapterRef) -> None:
        """Raises PermissionDenied where one more version `ref` is more than the tenant may have."""
        if tenant.max_adapters is None and tenant.max_adapter_bytes is None:
            return
        records, _ = self.page(tenant.id, "", None)
        names = {r.name for r in records if r.status != "retired"} | {ref.name}
        if tenant.max_adapters is not None and len(names) > tenant.max_adapters:
            raise PermissionDenied(
                f"Tenant {tenant.id} may have {tenant.max_adapters} adapters. Retire one first.",
                code="quota_adapters",
            )
        sizes = {v.ref.digest: v.ref.num_bytes for r in records for v in r.versions if v.live}
        total = sum({**sizes, ref.digest: ref.num_bytes}.values())
        if tenant.max_adapter_bytes is not None and total > tenant.max_adapter_bytes:
            raise PermissionDenied(
                f"With this version tenant {tenant.id} would have {total} bytes of adapters; it may"
                f" have {tenant.max_adapter_bytes}. Retire versions first.",
                code="quota_bytes",
            )

    # The record and its store ---------------------------------------------------------------------
    def _renamed(
        self,
        tenant: str,
        name: str,
        change: Callable[[AdapterRecord], AdapterRecord],
        *,
        may_make: bool = False,
    ) -> AdapterRecord:
        """`_update` with a change of what names stand for."""
        record = self._update(tenant, name, change, may_make=may_make)
        self._note(record)
        return record

    def _update(
        self,
        tenant: str,
        name: str,
        change: Callable[[AdapterRecord], AdapterRecord],
        *,
        may_make: bool = False,
    ) -> AdapterRecord:
        """Apply `change` to the record as it is when it is written. Versions that it retires lose
        their sidecars: a registry made anew has no tombstones.

        may_make  an adapter that there isn't begins as an empty record; else it is NotFound
        """

        def changed(record: AdapterRecord | None) -> AdapterRecord:
            if record is None and not may_make:
                raise _unknown(tenant, name)
            return change(record or AdapterRecord(tenant, name))

        before, after = update(
            self._registry,
            adapter_key(check_name(tenant, "tenant"), check_name(name, "adapter")),
            AdapterRecord.from_value,
            AdapterRecord.to_value,
            changed,
            f"Adapter '{tenant}/{name}'",
        )
        for version in () if before is None else before.versions:
            if version.live and not _is_live(after, version):
                self._sidecars.remove(version)
        return after

    def _note(self, record: AdapterRecord) -> None:
        """What production stands for, for a registry that must be made anew."""
        version = None if record.current is None else record.version(record.current)
        if version is not None:
            self._sidecars.note_promoted(version, self._clock())

    def _check_whole(self, version: VersionRecord) -> None:
        """All parts are there, as long as they should be; a replica verifies every byte."""
        prefix = object_prefix(version.ref.tenant, version.ref.digest)
        try:
            manifest = b"".join(self._store.read(f"{prefix}/{MANIFEST}"))
        except ObjectMissing:
            manifest = b""
        if (
            digest(manifest) != version.ref.digest
            or self._store.size(f"{prefix}/{TENSORS}") != version.ref.num_bytes
            or self._store.size(f"{prefix}/{CONFIG}") is None
        ):
            raise Conflict(
                f"The stored object of version {version.ref.digest[:12]} is not whole. Publish its"
                " files again.",
                code="object_not_whole",
                param="version",
            )


def unused(
    record: AdapterRecord, version: str | None, others: Iterable[AdapterRecord]
) -> list[AdapterRef]:
    """The retired versions of an adapter, or those that `version` begins, whose bytes none of its
    tenant's other adapters serves."""
    used = {v.ref.digest for r in others if r.name != record.name for v in r.versions if v.live}
    return [v.ref for v in record.tombstones(version) if v.ref.digest not in used]


def _is_live(record: AdapterRecord, version: VersionRecord) -> bool:
    found = record.version(version.ref.digest)
    return found is not None and found.live


def _check_expected(record: AdapterRecord, alias: str, expect: str | None) -> None:
    if expect is None:
        return
    if alias == CANARY:
        production = record.aliases.get(PRODUCTION)
        found = None if production is None else production.canary
    else:
        named = record.aliases.get(alias)
        found = None if named is None else named.digest
    if found is None or not found.startswith(expect):
        raise Conflict(
            f"{record.model}@{alias} stands for {'nothing' if found is None else found[:12]}, not"
            f" {expect[:12]}. Look at it again.",
            param="expect",
        )


def _unknown(tenant: str, name: str) -> NotFound:
    return NotFound(f"There is no adapter {tenant}/{name}.", param="name")
