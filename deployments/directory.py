"""What the registry says of tenants, keys and adapters. Pure: events in, answers out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from deployments.registry.records import (
    ADAPTERS,
    KEYS,
    TENANTS,
    AdapterRecord,
    KeyRecord,
    TenantRecord,
)
from deployments.registry.registry import Event
from engine.types import NAME, AdapterRef

_VERSION = re.compile(r"[0-9a-f]{8,64}")


class Directory:
    """The newest known record of every key. Events may come twice or late: revisions decide."""

    def __init__(self) -> None:
        self._records: dict[str, TenantRecord | KeyRecord | AdapterRecord] = {}
        self._revs: dict[str, int] = {}
        self._by_tenant: dict[str, dict[str, AdapterRecord]] = {}

    def apply(self, event: Event) -> None:
        if event.rev <= self._revs.get(event.key, 0):
            return
        old = self._records.pop(event.key, None)
        if isinstance(old, AdapterRecord):
            del self._by_tenant[old.tenant][old.name]
        self._revs[event.key] = event.rev
        record = None if event.value is None else _record(event.key, event.value)
        if record is not None:
            self._records[event.key] = record
        if isinstance(record, AdapterRecord):
            self._by_tenant.setdefault(record.tenant, {})[record.name] = record

    def key(self, registry_key: str) -> KeyRecord | None:
        record = self._records.get(registry_key)
        return record if isinstance(record, KeyRecord) else None

    def tenant(self, registry_key: str) -> TenantRecord | None:
        record = self._records.get(registry_key)
        return record if isinstance(record, TenantRecord) else None

    def adapter(self, tenant: str, name: str) -> AdapterRecord | None:
        return self._by_tenant.get(tenant, {}).get(name)

    def adapters(self, tenant: str | None = None) -> Iterator[AdapterRecord]:
        """A tenant's, or all, by name."""
        tenants = sorted(self._by_tenant) if tenant is None else [tenant]
        for t in tenants:
            for _, record in sorted(self._by_tenant.get(t, {}).items()):
                yield record

    def check(self) -> None:
        """Assert that the index by tenant and the records are the same."""
        adapters = [r for r in self._records.values() if isinstance(r, AdapterRecord)]
        assert sorted(r.key for r in self.adapters()) == sorted(r.key for r in adapters)
        assert set(self._records) <= set(self._revs)


def split_model(model: str, tenant: str) -> tuple[str, str | None] | None:
    """(name, version) of `[tenant/]name[@version]`; None where it can't be one of `tenant`'s."""
    owner, slash, rest = model.rpartition("/")
    name, at, version = rest.partition("@")
    if (slash and owner != tenant) or re.fullmatch(NAME, name) is None:
        return None
    if at and _VERSION.fullmatch(version) is None:
        return None
    return name, version if at else None


def pick_version(record: AdapterRecord | None, version: str | None) -> AdapterRef | None:
    """The current version, or the one whose digest begins with `version`; never a retired one."""
    if record is None:
        return None
    if version is None:
        return record.ref
    found = [
        v.ref for v in record.versions if v.retired_s is None and v.ref.digest.startswith(version)
    ]
    return found[0] if len(found) == 1 else None


def _record(key: str, value: Mapping[str, Any]) -> TenantRecord | KeyRecord | AdapterRecord | None:
    """None for a kind of record that a newer release keeps beside ours."""
    if key.startswith(TENANTS):
        return TenantRecord.from_value(value)
    if key.startswith(KEYS):
        return KeyRecord.from_value(value)
    if key.startswith(ADAPTERS):
        return AdapterRecord.from_value(value)
    return None
