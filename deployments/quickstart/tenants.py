"""The quickstart's tenants: three companies with an adapter each, and the operator."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from deployments.changes.tenants import Tenants
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord, adapter_key, key_key
from deployments.registry.registry import Registry
from engine.errors import LoraplexError, NotFound

ADAPTERS_FOLDER = Path(__file__).parent / "adapters"
ADMIN = "admin"
PUBLISHED_BY = "quickstart"


class Control(Protocol):
    """Of `deployments.control.control.Control`."""

    async def publish(self, tenant: str, name: str, folder: str, by: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """`prompt` is something that shows what its adapter does."""

    id: str
    adapter: str
    prompt: str

    @property
    def model(self) -> str:
        """The adapter as a client names it."""
        return f"{self.id}/{self.adapter}"


DEMO_TENANTS = (
    DemoTenant("acme", "support", "My package never arrived and the website is down."),
    DemoTenant("globex", "sql", "How many customers have the city Oslo?"),
    DemoTenant("blackbeard", "pirate", "What is the capital of Italy?"),
)


class DemoKeys:
    """The demo keys in a file that its owner alone can read: the registry has only their hashes.

    A key is kept as long as the registry knows it as good, so keys are the same after a restart.
    """

    def __init__(self, path: Path, registry: Registry) -> None:
        """Raises LoraplexError where the file holds something else."""
        self._path = path
        self._registry = registry
        self._keys = _read_keys(path) if path.exists() else {}

    def ensure(self, who: str, make: Callable[[], str]) -> str:
        """The good key of `who`; `make` makes one where there is none."""
        key = self._keys.get(who)
        if key is None or not self._is_good(key):
            key = self._keys[who] = make()
            self._save()
        return key

    def _is_good(self, key: str) -> bool:
        entry = self._registry.get(key_key(key))
        return entry is not None and entry.value.get("revoked_s") is None

    def _save(self) -> None:
        partial = self._path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(self._keys, file, indent=1)
        partial.rename(self._path)


def _read_keys(path: Path) -> dict[str, str]:
    try:
        keys = json.loads(path.read_text())
        if isinstance(keys, dict) and all(isinstance(key, str) for key in keys.values()):
            return keys
    except ValueError:
        pass
    raise LoraplexError(f"{path} holds no keys. Remove it, and new ones are made.")


def prepare_tenants(keys: DemoKeys, tenants: Tenants) -> Mapping[str, str]:
    """Make the demo tenants and keys where they are missing; keys by tenant, and `admin`."""
    found = {ADMIN: keys.ensure(ADMIN, tenants.create_admin_key)}
    for demo in DEMO_TENANTS:
        found[demo.id] = keys.ensure(demo.id, partial(_new_key, tenants, demo.id))
    return found


def _new_key(tenants: Tenants, tenant: str) -> str:
    """A key for `tenant`, which is made if need be. A key that got lost is good no longer."""
    try:
        return tenants.rotate_key(tenant)
    except NotFound:
        return tenants.create(TenantRecord(tenant))[1]


def missing_adapters(registry: Registry, base_revision: str) -> list[DemoTenant]:
    """Whose adapter's name stands for nothing yet, on this base.

    So a version that somebody published under the name since, or a retired name, stays as it is.
    """
    missing = []
    for demo in DEMO_TENANTS:
        entry = registry.get(adapter_key(demo.id, demo.adapter))
        versions = () if entry is None else AdapterRecord.from_value(entry.value).versions
        if not versions or versions[-1].ref.base_revision != base_revision:
            missing.append(demo)
    return missing


async def publish_adapters(control: Control, demos: Iterable[DemoTenant]) -> None:
    """`control`'s import root is `ADAPTERS_FOLDER`. Raises LoraplexError."""
    for demo in demos:
        answer = await control.publish(demo.id, demo.adapter, demo.adapter, by=PUBLISHED_BY)
        if "error" in answer:
            raise LoraplexError(f"{demo.model} can't be published: {answer['error']['message']}")
