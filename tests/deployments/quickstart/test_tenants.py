"""Demo tenants and keys: made once, the same after a restart, mended where they were lost."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from deployments.changes.tenants import Tenants
from deployments.ingress.auth import key_hint
from deployments.quickstart.tenants import (
    ADAPTERS_FOLDER,
    ADMIN,
    DEMO_TENANTS,
    DemoKeys,
    missing_adapters,
    prepare_tenants,
)
from deployments.registry import open_registry
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import KeyRecord, adapter_key, key_key
from deployments.registry.registry import ABSENT, Registry
from deployments.registry.version_record import VersionRecord
from engine.errors import LoraplexError
from engine.types import AdapterRef


class Home:
    """A data folder, and what a start of the quickstart does with it."""

    def __init__(self, path: Path) -> None:
        self.keys = path / "keys.json"
        self.registry: Registry = open_registry(f"sqlite://{path / 'registry.db'}")
        self._bytes = (n.to_bytes(32, "big") for n in itertools.count())

    def start(self) -> dict[str, str]:
        tenants = Tenants(
            self.registry, clock=lambda: 1.0, random_bytes=lambda n: next(self._bytes)
        )
        return dict(prepare_tenants(DemoKeys(self.keys, self.registry), tenants))

    def record(self, key: str) -> KeyRecord | None:
        entry = self.registry.get(key_key(key))
        return None if entry is None else KeyRecord.from_value(entry.value)

    def publish(self, tenant: str, name: str, base_revision: str) -> None:
        ref = AdapterRef(tenant, name, "0" * 64, base_revision, (8,), 1, 1, "file:///nowhere")
        version = VersionRecord(ref, 1.0, "test", "base", None, (), 1)
        record = AdapterRecord(tenant, name).with_version(version).promoted(version.ref.digest)
        self.registry.put(adapter_key(tenant, name), record.to_value(), ABSENT)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("text", ["{broken", "[]", '{"acme": 5}', ""])
def test_a_damaged_file_of_keys_is_an_error_with_the_remedy(home: Home, text: str) -> None:
    home.keys.write_text(text)
    with pytest.raises(LoraplexError, match="Remove it"):
        home.start()


def test_every_tenant_and_the_operator_get_a_key(home: Home) -> None:
    keys = home.start()
    assert keys.keys() == {ADMIN, *(demo.id for demo in DEMO_TENANTS)}
    for who, key in keys.items():
        record = home.record(key)
        assert key.startswith("lp-") and record is not None
        assert record.tenant == (None if who == ADMIN else who)
        assert record.hint == key_hint(key)
    assert json.loads(home.keys.read_text()) == keys
    assert home.keys.stat().st_mode & 0o777 == 0o600


def test_keys_stay_the_same(home: Home) -> None:
    assert home.start() == home.start()


def test_a_lost_file_revokes_the_keys_nobody_knows_any_more(home: Home) -> None:
    before = home.start()
    home.keys.unlink()
    after = home.start()
    assert not set(before.values()) & set(after.values())
    for demo in DEMO_TENANTS:
        lost, found = home.record(before[demo.id]), home.record(after[demo.id])
        assert lost is not None and lost.revoked_s is not None
        assert found is not None and found.revoked_s is None


def test_a_rotated_key_is_replaced(home: Home) -> None:
    before = home.start()
    Tenants(home.registry, clock=lambda: 2.0, random_bytes=lambda n: b"r" * n).rotate_key("acme")
    after = home.start()
    assert after["acme"] != before["acme"]
    assert after["globex"] == before["globex"]


def test_adapters_are_missing_until_published_for_this_base(home: Home) -> None:
    home.start()
    assert missing_adapters(home.registry, "r1") == list(DEMO_TENANTS)
    home.publish("globex", "sql", "r1")
    assert [demo.id for demo in missing_adapters(home.registry, "r1")] == ["acme", "blackbeard"]
    assert missing_adapters(home.registry, "r2") == list(DEMO_TENANTS)


def test_each_demo_adapter_is_in_the_package() -> None:
    for demo in DEMO_TENANTS:
        names = {path.name for path in (ADAPTERS_FOLDER / demo.adapter).iterdir()}
        assert names == {"adapter_config.json", "adapter_model.safetensors"}
