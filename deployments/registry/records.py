"""What the registry keeps: a tenant, a key, an adapter and its versions.

Each record knows its key and turns itself into a JSON object and back. Times are Unix seconds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from engine.errors import InvalidRequest
from engine.types import NAME, AdapterRef, Tenant, adapter_from_wire, adapter_to_wire

RECORD_VERSION = 1
TENANTS = "tenant/"
KEYS = "key/"
ADAPTERS = "adapter/"
SUSPENDED = "suspended"
"""A tenant's flag: its keys are known but serve nothing."""


class Role(StrEnum):
    TENANT = "tenant"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """Who is served. Limits as in `engine.types.Tenant`."""

    id: str
    weight: float = 1.0
    max_concurrent: int = 256
    max_queued: int = 128
    flags: tuple[str, ...] = ()
    created_s: float = 0.0

    @property
    def key(self) -> str:
        return tenant_key(self.id)

    @property
    def suspended(self) -> bool:
        return SUSPENDED in self.flags

    def tenant(self) -> Tenant:
        return Tenant(self.id, self.weight, self.max_concurrent, self.max_queued)

    def to_value(self) -> dict[str, Any]:
        return {"v": RECORD_VERSION, **asdict(self), "flags": list(self.flags)}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> TenantRecord:
        known = _known(cls, value)
        return cls(**{**known, "flags": tuple(known.get("flags", ()))})


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key, of which only the sha256 (hex) is kept; keys are long random strings.

    tenant     whom it speaks for; None for an admin key
    hint       its first characters, to tell keys apart in a list
    revoked_s  None while it is good
    """

    sha256: str
    role: Role
    tenant: str | None
    hint: str
    created_s: float
    revoked_s: float | None = None

    @property
    def key(self) -> str:
        return KEYS + self.sha256

    def to_value(self) -> dict[str, Any]:
        return {"v": RECORD_VERSION, **asdict(self), "role": self.role.value}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> KeyRecord:
        known = _known(cls, value)
        return cls(**{**known, "role": Role(known["role"])})


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One immutable version of an adapter.

    base         the base that its config names
    asserted_by  who vouched for another base than the accepted ones; None where it was accepted
    modules      module names, layer numbers replaced by `*`, sorted
    num_modules  how many modules it changes
    warnings     what a person should know of it
    retired_s    None while requests may name it; after that this is a tombstone
    """

    ref: AdapterRef
    published_s: float
    by: str
    base: str
    asserted_by: str | None
    modules: tuple[str, ...]
    num_modules: int
    warnings: tuple[str, ...] = ()
    retired_s: float | None = None
    retired_by: str | None = None

    def to_value(self) -> dict[str, Any]:
        return {
            "ref": {**adapter_to_wire(self.ref), "ranks": list(self.ref.ranks)},
            "published_s": self.published_s,
            "by": self.by,
            "base": self.base,
            "asserted_by": self.asserted_by,
            "modules": list(self.modules),
            "num_modules": self.num_modules,
            "warnings": list(self.warnings),
            "retired_s": self.retired_s,
            "retired_by": self.retired_by,
        }

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> VersionRecord:
        return cls(
            **{
                **{name: value[name] for name in cls.__dataclass_fields__ if name in value},
                "ref": adapter_from_wire(value["ref"]),
                "modules": tuple(value["modules"]),
                "warnings": tuple(value["warnings"]),
            }
        )


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """A tenant's adapter by name. `current` is the digest that the name stands for, None once it
    is retired. Versions are in the order of their publishing; retired ones stay as tombstones."""

    tenant: str
    name: str
    current: str | None
    versions: tuple[VersionRecord, ...]

    @property
    def key(self) -> str:
        return adapter_key(self.tenant, self.name)

    @property
    def status(self) -> str:
        return "retired" if self.current is None else "published"

    @property
    def ref(self) -> AdapterRef | None:
        """What the name resolves to now."""
        version = None if self.current is None else self.version(self.current)
        return None if version is None else version.ref

    def version(self, digest: str) -> VersionRecord | None:
        return next((v for v in self.versions if v.ref.digest == digest), None)

    def with_version(self, version: VersionRecord) -> AdapterRecord:
        """`version` becomes the current one, in place of an earlier record of the same digest."""
        others = tuple(v for v in self.versions if v.ref.digest != version.ref.digest)
        return replace(self, current=version.ref.digest, versions=(*others, version))

    def retired(self, at_s: float, by: str) -> AdapterRecord:
        """The name stands for nothing and every version is a tombstone."""
        versions = tuple(
            v if v.retired_s is not None else replace(v, retired_s=at_s, retired_by=by)
            for v in self.versions
        )
        return replace(self, current=None, versions=versions)

    def to_value(self) -> dict[str, Any]:
        return {
            "v": RECORD_VERSION,
            "tenant": self.tenant,
            "name": self.name,
            "current": self.current,
            "versions": [version.to_value() for version in self.versions],
        }

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> AdapterRecord:
        known = _known(cls, value)
        versions = tuple(VersionRecord.from_value(v) for v in known["versions"])
        return cls(**{**known, "versions": versions})


def tenant_key(tenant: str) -> str:
    return TENANTS + tenant


def adapter_key(tenant: str, name: str) -> str:
    return f"{ADAPTERS}{tenant}/{name}"


def key_key(secret: str) -> str:
    """Where the record of an API key lies."""
    return KEYS + hash_key(secret)


def hash_key(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def check_name(name: str, what: str) -> str:
    """Answer `name`. Raises InvalidRequest unless it can name a tenant or an adapter (`what`)."""
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise InvalidRequest(
            f"{what} {str(name)[:80]!r} is not a name. Use 1 to 63 of a-z, 0-9, '.', '_' and '-',"
            " beginning with a letter or digit.",
            param=what,
        )
    return name


def _known(cls: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this release knows. Raises ValueError for another major version."""
    if value.get("v") != RECORD_VERSION:
        raise ValueError(f"record version {value.get('v')} is not {RECORD_VERSION}")
    return {name: value[name] for name in cls.__dataclass_fields__ if name in value}
