"""What the registry says of tenants, keys and adapters. Pure: events in, answers out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from sys import intern
from typing import Any

from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import is_selector
from deployments.registry.records import ADAPTERS, KEYS, TENANTS, KeyRecord, TenantRecord
from deployments.registry.registry import Event
from engine.types import NAME

KINDS = (TENANTS, KEYS, ADAPTERS)


class Directory:
    """The newest known record of every key. Events may come twice or late: revisions decide."""

    def __init__(self) -> None:
        self._records: dict[str, TenantRecord | KeyRecord | AdapterRecord] = {}
        self._revs: dict[str, int] = {}
        self._by_tenant: dict[str, dict[str, AdapterRecord]] = {}
        self._hints: dict[str, set[str]] = {}
        self._modules: dict[tuple[str, ...], tuple[str, ...]] = {}

    def apply(self, event: Event) -> None:
        """Of other kinds of record, such as usage and what a newer release keeps beside ours,
        nothing is remembered."""
        if not event.key.startswith(KINDS) or event.rev <= self._revs.get(event.key, 0):
            return
        old = self._records.pop(event.key, None)
        if isinstance(old, AdapterRecord):
            del self._by_tenant[old.tenant][old.name]
        self._revs[event.key] = event.rev
        record = None if event.value is None else self._record(event.key, event.value)
        if isinstance(record, AdapterRecord):
            self._by_tenant.setdefault(record.tenant, {})[record.name] = record
        if isinstance(record, KeyRecord) and record.tenant is not None:
            self._hints.setdefault(record.tenant, set()).add(record.hint)
        if record is not None:
            self._records[event.key] = record

    def key(self, registry_key: str) -> KeyRecord | None:
        record = self._records.get(registry_key)
        return record if isinstance(record, KeyRecord) else None

    def hints(self, tenant: str) -> Set[str]:
        """Of all keys that the tenant has, or had; to look at, since it grows with the next key."""
        return self._hints.get(tenant, frozenset())

    def tenant(self, registry_key: str) -> TenantRecord | None:
        record = self._records.get(registry_key)
        return record if isinstance(record, TenantRecord) else None

    def rev(self, registry_key: str) -> int:
        """Of the newest that is known of this key, its deletion included; 0: nothing is."""
        return self._revs.get(registry_key, 0)

    def tenants(self) -> Iterator[TenantRecord]:
        return (r for r in self._records.values() if isinstance(r, TenantRecord))

    def adapter(self, tenant: str, name: str) -> AdapterRecord | None:
        return self._by_tenant.get(tenant, {}).get(name)

    def adapters(self, tenant: str | None = None) -> Iterator[AdapterRecord]:
        """A tenant's, or all, by name."""
        tenants = sorted(self._by_tenant) if tenant is None else [tenant]
        for t in tenants:
            for _, record in sorted(self._by_tenant.get(t, {}).items()):
                yield record

    def _record(
        self, key: str, value: Mapping[str, Any]
    ) -> TenantRecord | KeyRecord | AdapterRecord:
        if key.startswith(TENANTS):
            return TenantRecord.from_value(value)
        if key.startswith(KEYS):
            return KeyRecord.from_value(value)
        return AdapterRecord.from_value(self._shared(value))

    def _shared(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """An adapter's stored value with one object for what repeats in and between records: half
        the memory of many adapters. (A record keeps the objects that it is made from.)"""
        tenant, name, digests = intern(value["tenant"]), value["name"], {}
        versions = []
        for v in value["versions"]:
            ref, modules = v["ref"], tuple(v["modules"])
            digests[ref["digest"]] = ref["digest"]
            same = {
                "tenant": tenant,
                "name": name,
                "base_revision": intern(ref["base_revision"]),
            }
            versions.append(
                {
                    **v,
                    "ref": {**ref, **same},
                    "base": intern(v["base"]),
                    "by": intern(v["by"]),
                    "modules": self._modules.setdefault(modules, modules),
                }
            )
        aliases = {
            intern(alias): {**told, "digest": digests.get(told["digest"], told["digest"])}
            for alias, told in value.get("aliases", {}).items()
        }
        return {**value, "tenant": tenant, "versions": versions, "aliases": aliases}

    def check(self) -> None:
        """Assert that the index by tenant and the records are the same."""
        adapters = [r for r in self._records.values() if isinstance(r, AdapterRecord)]
        assert sorted(r.key for r in self.adapters()) == sorted(r.key for r in adapters)
        assert set(self._records) <= set(self._revs)


def split_model(model: str, tenant: str) -> tuple[str, str | None] | None:
    """(name, selector) of `[tenant/]name[@alias or @version]`; None where it can't be one of
    `tenant`'s."""
    owner, slash, rest = model.rpartition("/")
    name, at, selector = rest.partition("@")
    if (slash and owner != tenant) or NAME.fullmatch(name) is None:
        return None
    if at and not is_selector(selector):
        return None
    return name, selector if at else None
