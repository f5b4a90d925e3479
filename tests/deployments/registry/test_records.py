from __future__ import annotations

import json

import pytest

from deployments.registry.records import (
    AdapterRecord,
    KeyRecord,
    Role,
    TenantRecord,
    VersionRecord,
    check_name,
    hash_key,
    key_key,
)
from engine.errors import InvalidRequest
from engine.types import AdapterRef, Tenant


def version(digest="d1", **changes):
    ref = AdapterRef("acme", "support", digest, "rev", (4, 8), 4096, 9000, "file:///x")
    return VersionRecord(
        **{
            "ref": ref,
            "published_s": 1.5,
            "by": "admin",
            "base": "base/model",
            "asserted_by": None,
            "modules": ("model.layers.*.self_attn.q_proj",),
            "num_modules": 30,
            "warnings": ("odd",),
            **changes,
        }
    )


def through_json(record):
    return type(record).from_value(json.loads(json.dumps(record.to_value())))


@pytest.mark.parametrize(
    "record",
    [
        TenantRecord("acme", 2.0, 8, 16, ("suspended",), 3.5),
        KeyRecord(hash_key("lp-secret"), Role.TENANT, "acme", "lp-secr", 1.0, 2.0),
        KeyRecord(hash_key("lp-root"), Role.ADMIN, None, "lp-root", 1.0),
        AdapterRecord("acme", "support", "d1", (version(),)).retired(9.0, "bob"),
        AdapterRecord("acme", "support", "d1", (version(asserted_by="eve"),)),
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


def test_a_key_is_found_by_its_hash_alone():
    record = KeyRecord(hash_key("lp-secret"), Role.TENANT, "acme", "lp-s", 1.0)
    assert record.key == key_key("lp-secret")
    assert "lp-secret" not in json.dumps(record.to_value())


def test_a_name_points_at_its_newest_version_until_it_is_retired():
    record = AdapterRecord("acme", "support", "d1", (version("d1"),)).with_version(version("d2"))
    assert record.ref.digest == "d2" and record.status == "published"
    assert [v.ref.digest for v in record.versions] == ["d1", "d2"]
    gone = record.retired(9.0, "bob")
    assert gone.ref is None and gone.status == "retired"
    assert all((v.retired_s, v.retired_by) == (9.0, "bob") for v in gone.versions)
    back = gone.with_version(version("d1"))
    assert back.ref.digest == "d1"
    assert [(v.ref.digest, v.retired_s) for v in back.versions] == [("d2", 9.0), ("d1", None)]


# A-TRAVERSAL
@pytest.mark.parametrize(
    "name",
    ["", "../../etc/passwd", "/abs", "a/../../b", "%2e%2e/", "a\0b", "a" * 64, "Bot", "аcme", "a\n"]
    + [None, "-a", ".a", "_a", 7],
)
def test_only_plain_names_are_names(name):
    with pytest.raises(InvalidRequest):
        check_name(name, "adapter")


@pytest.mark.parametrize("name", ["a", "0", "support", "a.b_c-d", "a" * 63])
def test_plain_names_pass(name):
    assert check_name(name, "tenant") == name
