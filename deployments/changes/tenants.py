"""Tenants and their keys in the registry. Blocking; an event loop calls it from a thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from deployments.changes.compare_and_set import update
from deployments.ingress.auth import RandomBytes, key_hint, new_key
from deployments.registry.records import (
    KEYS,
    SUSPENDED,
    TENANTS,
    KeyRecord,
    Role,
    TenantRecord,
    check_name,
    hash_key,
    tenant_key,
)
from deployments.registry.registry import ABSENT, Registry
from engine.errors import Conflict, InvalidRequest, NotFound


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant and the hints of its good keys."""

    record: TenantRecord
    keys: tuple[str, ...]


def no_tenant(tenant: str) -> NotFound:
    """The same words for what isn't there and what the caller may not know of."""
    return NotFound(f"There is no tenant {tenant[:80]}.", param="tenant")


class Tenants:
    """clock: Unix seconds. random_bytes: what keys are made of."""

    def __init__(
        self, registry: Registry, *, clock: Callable[[], float], random_bytes: RandomBytes
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._random_bytes = random_bytes

    def create(self, record: TenantRecord) -> tuple[TenantRecord, str]:
        """The new tenant and its first key. Raises InvalidRequest, Conflict."""
        check_name(record.id, "tenant")
        _check_shares(record)
        record = replace(record, created_s=self._clock())
        try:
            self._registry.put(record.key, record.to_value(), ABSENT)
        except Conflict:
            raise Conflict(f"Tenant {record.id} exists already.", param="tenant") from None
        return record, self._add_key(Role.TENANT, record.id)[0]

    def rotate_key(self, tenant: str) -> str:
        """A new key in the place of the tenant's others. Of rotations that meet, the one whose key
        was written last has replaced the others' too. Raises NotFound, and Conflict where this was
        not the last."""
        self.get(tenant)
        key, rev = self._add_key(Role.TENANT, tenant)
        good = {at: k for k, at in self._keys() if k.tenant == tenant and k.revoked_s is None}
        last = max(good, default=0)
        for at, record in good.items():
            if at < last:
                self._revoke(record.key)
        if rev != last:
            raise Conflict(
                f"Another rotation of {tenant}'s key was a moment later, and its key is the good"
                " one. Rotate again if you don't have it."
            )
        return key

    def _revoke(self, key: str) -> None:
        """Once done it stays so: whoever was faster has done no more than this would have."""
        while (entry := self._registry.get(key)) is not None:
            record = KeyRecord.from_value(entry.value)
            if record.revoked_s is not None:
                return
            revoked = replace(record, revoked_s=self._clock())
            with suppress(Conflict):
                self._registry.put(key, revoked.to_value(), entry.rev)
                return

    def get(self, tenant: str) -> TenantRecord:
        entry = self._registry.get(tenant_key(check_name(tenant, "tenant")))
        if entry is None:
            raise no_tenant(tenant)
        return TenantRecord.from_value(entry.value)

    def change(self, tenant: str, change: Callable[[TenantRecord], TenantRecord]) -> TenantRecord:
        """Apply `change` to the record as it is when it is written. Raises NotFound,
        InvalidRequest, Conflict."""

        def changed(record: TenantRecord | None) -> TenantRecord:
            if record is None:
                raise no_tenant(tenant)
            after = change(record)
            if _shares(after) != _shares(record):
                _check_shares(after)
            return after

        _, after = update(
            self._registry,
            tenant_key(check_name(tenant, "tenant")),
            TenantRecord.from_value,
            TenantRecord.to_value,
            changed,
            f"Tenant {tenant}",
        )
        return after

    def suspend(self, tenant: str) -> TenantRecord:
        """Its keys serve nothing until `resume`. Raises NotFound."""
        return self.change(tenant, lambda record: record.with_flag(SUSPENDED, True))

    def resume(self, tenant: str) -> TenantRecord:
        """Raises NotFound."""
        return self.change(tenant, lambda record: record.with_flag(SUSPENDED, False))

    def views(self, after: str = "", limit: int | None = None) -> tuple[list[TenantView], bool]:
        """The first `limit` (None: all) whose id sorts behind `after`, and whether there are
        more."""
        hints: dict[str, list[str]] = {}
        for key, _ in self._keys():
            if key.tenant is not None and key.revoked_s is None:
                hints.setdefault(key.tenant, []).append(key.hint)
        listing = self._registry.list(
            TENANTS,
            after=tenant_key(after) if after else "",
            limit=None if limit is None else limit + 1,
        )
        records = [TenantRecord.from_value(e.value) for e in listing.entries]
        views = [TenantView(r, tuple(sorted(hints.get(r.id, ())))) for r in records]
        return views[:limit], limit is not None and len(views) > limit

    def create_admin_key(self) -> str:
        return self._add_key(Role.ADMIN, None)[0]

    def _add_key(self, role: Role, tenant: str | None) -> tuple[str, int]:
        """A new key, and the revision that its record has as long as it is good."""
        key = new_key(self._random_bytes)
        record = KeyRecord(hash_key(key), role, tenant, key_hint(key), self._clock())
        return key, self._registry.put(record.key, record.to_value(), ABSENT)

    def _keys(self) -> list[tuple[KeyRecord, int]]:
        entries = self._registry.list(KEYS).entries
        return [(KeyRecord.from_value(e.value), e.rev) for e in entries]


def _shares(record: TenantRecord) -> tuple[float | None, float | None]:
    return record.soft_kv_share, record.hard_kv_share


def _check_shares(record: TenantRecord) -> None:
    """Of whatever is borrowed beyond the soft share none could ever be had."""
    soft, hard = _shares(record)
    if soft is not None and hard is not None and soft > hard:
        raise InvalidRequest(
            f"soft_kv_share ({soft:g}) is above hard_kv_share ({hard:g}). Lower the one, or raise"
            " the other.",
            param="soft_kv_share",
        )
