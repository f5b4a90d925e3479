"""What the registry keeps of a tenant and of a key; adapters are in `adapter_record`.

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
from engine.types import NAME, Tenant

RECORD_VERSION = 1
TENANTS = "tenant/"
KEYS = "key/"
ADAPTERS = "adapter/"
SUSPENDED = "suspended"
"""A tenant's flag: its keys are known but serve nothing."""
SELF_PUBLISH = "self_publish"
"""A tenant's flag: its keys publish, promote, roll back and retire its own adapters."""
LOG_CONTENT = "log_content"
"""A tenant's flag: the prompts and answers of its requests are logged."""
SWITCHES = (SELF_PUBLISH, LOG_CONTENT)
"""The flags that are fields of a tenant's view and of the bodies that change it."""


class Role(StrEnum):
    TENANT = "tenant"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """Who is served, and what it may publish. Limits as in `engine.types.Tenant`; None: no limit.

    max_adapters       names that stand for something
    max_adapter_bytes  stored bytes of all versions that aren't retired, each counted once
    max_host_bytes, max_device_bytes  of its adapters on one replica; None: no limit
    max_tokens_per_minute  of the whole service; None: no limit
    soft_kv_share, hard_kv_share  of a replica's KV pages; None: no limit
    max_rank, allowed_ranks  of every module of a version; no allowed ranks: any
    """

    id: str
    weight: float = 1.0
    max_concurrent: int = 256
    max_queued: int = 128
    flags: tuple[str, ...] = ()
    created_s: float = 0.0
    max_adapters: int | None = None
    max_adapter_bytes: int | None = None
    max_rank: int | None = None
    allowed_ranks: tuple[int, ...] = ()
    max_host_bytes: int | None = None
    max_device_bytes: int | None = None
    soft_kv_share: float | None = None
    hard_kv_share: float | None = None
    max_tokens_per_minute: int | None = None

    @property
    def key(self) -> str:
        return tenant_key(self.id)

    @property
    def suspended(self) -> bool:
        return SUSPENDED in self.flags

    @property
    def self_publish(self) -> bool:
        return SELF_PUBLISH in self.flags

    @property
    def log_content(self) -> bool:
        return LOG_CONTENT in self.flags

    def with_flag(self, flag: str, on: bool) -> TenantRecord:
        others = tuple(f for f in self.flags if f != flag)
        return replace(self, flags=(*others, flag) if on else others)

    def tenant(self) -> Tenant:
        return Tenant(
            self.id,
            self.weight,
            self.max_concurrent,
            self.max_queued,
            self.max_host_bytes,
            self.max_device_bytes,
            self.soft_kv_share,
            self.hard_kv_share,
            self.max_tokens_per_minute,
        )

    def to_value(self) -> dict[str, Any]:
        lists = {"flags": list(self.flags), "allowed_ranks": list(self.allowed_ranks)}
        return {"v": RECORD_VERSION, **asdict(self), **lists}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> TenantRecord:
        known = known_fields(cls, value, RECORD_VERSION)
        tuples = {name: tuple(known.get(name, ())) for name in ("flags", "allowed_ranks")}
        return cls(**{**known, **tuples})


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
        known = known_fields(cls, value, RECORD_VERSION)
        return cls(**{**known, "role": Role(known["role"])})


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


def known_fields(cls: Any, value: Mapping[str, Any], version: int) -> dict[str, Any]:
    """The fields that this release knows. Raises ValueError for another version of the record."""
    if value.get("v") != version:
        raise ValueError(f"record version {value.get('v')} is not {version}")
    return {name: value[name] for name in cls.__dataclass_fields__ if name in value}
