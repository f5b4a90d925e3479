from __future__ import annotations

import json

import pytest

from deployments.registry.records import (
    KeyRecord,
    Role,
    TenantRecord,
    check_name,
    hash_key,
    key_key,
)
from engine.errors import InvalidRequest
from engine.types import Tenant


def through_json(record):
    return type(record).from_value(json.loads(json.dumps(record.to_value())))


@pytest.mark.parametrize(
    "record",
    [
        TenantRecord("acme", 2.0, 8, 16, ("suspended",), 3.5),
        KeyRecord(hash_key("lp-secret"), Role.TENANT, "acme", "lp-secr", 1.0, 2.0),
        KeyRecord(hash_key("lp-root"), Role.ADMIN, None, "lp-root", 1.0),
        TenantRecord("acme", flags=("self_publish",), max_adapters=3, allowed_ranks=(8, 16)),
    ],
)
def test_records_survive_json(record):
    assert through_json(record) == record


def test_a_newer_release_may_add_fields_but_not_change_the_version():
    value = TenantRecord("acme").to_value()
    assert TenantRecord.from_value({**value, "colour": "red"}) == TenantRecord("acme")
    with pytest.raises(ValueError, match="record version 2"):
        TenantRecord.from_value({**value, "v": 2})


def test_a_tenant_record_gives_the_tenant():
    record = TenantRecord("acme", 2.0, 8, 16, ("suspended",))
    assert record.tenant() == Tenant("acme", 2.0, 8, 16)
    assert record.suspended and not TenantRecord("acme").suspended
    assert not record.with_flag("suspended", False).suspended
    assert record.with_flag("self_publish", True).flags == ("suspended", "self_publish")


def test_a_key_is_found_by_its_hash_alone():
    record = KeyRecord(hash_key("lp-secret"), Role.TENANT, "acme", "lp-s", 1.0)
    assert record.key == key_key("lp-secret")
    assert "lp-secret" not in json.dumps(record.to_value())


# A-TRAVERSAL
@pytest.mark.parametrize(
    "name",
    ["", "../../etc/passwd", "/abs", "a/../../b", "%2e%2e/", "a\0b", "a" * 64, "Bot", "аcme", "a\n"]
    + [None, "-a", ".a", "_a", 7],
)
def test_only_plain_names_are_names(name):
    """A-TRAVERSAL."""
    with pytest.raises(InvalidRequest):
        check_name(name, "adapter")


@pytest.mark.parametrize("name", ["a", "0", "support", "a.b_c-d", "a" * 63])
def test_plain_names_pass(name):
    assert check_name(name, "tenant") == name
