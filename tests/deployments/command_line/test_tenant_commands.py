"""`loraplex tenants` against a real HTTP server."""

import json

from deployments.registry.records import key_key


def test_a_tenant_is_changed_suspended_and_resumed(loraplex, world):
    change = ("tenants", "change", "t1")
    said = loraplex(*change, "--max-rank", "16", "--allowed-ranks", "8,16", "--self-publish")
    assert "Changed max_rank, allowed_ranks, self_publish of t1" in said
    assert not world.tenants.get("t1").log_content
    loraplex(*change, "--log-content")
    record = world.tenants.get("t1")
    assert record.log_content
    assert (record.max_rank, record.allowed_ranks, record.self_publish) == (16, (8, 16), True)
    listed = " ".join(loraplex("tenants", "list", env={"COLUMNS": "300"}).split())
    assert "max_rank 16, allowed_ranks [8, 16]" in listed and "active, self_publish" in listed
    loraplex(*change, "--max-rank", "-1", "--allowed-ranks", "any", "--no-self-publish")
    loraplex(*change, "--no-log-content")
    record = world.tenants.get("t1")
    assert record.flags == ()
    assert (record.max_rank, record.allowed_ranks, record.self_publish) == (None, (), False)
    assert "Give what is to change" in loraplex(*change, code=2)
    assert "no ranks" in loraplex(*change, "--allowed-ranks", "a,b", code=2)
    loraplex("tenants", "suspend", "t1")
    assert world.tenants.get("t1").suspended and "suspended" in loraplex("tenants", "list")
    loraplex("tenants", "resume", "t1")
    assert not world.tenants.get("t1").suspended


def test_tenants(loraplex, world):
    said = loraplex("tenants", "create", "t3", "--weight", "2", "--max-concurrent", "7")
    key = said.split()[-1]
    assert key.startswith("lp-")
    assert world.registry.get(key_key(key)).value["tenant"] == "t3"
    found = {t["id"]: t for t in json.loads(loraplex("tenants", "list", "--json"))}
    assert (found["t3"]["weight"], found["t3"]["max_concurrent"]) == (2.0, 7)
    assert found["t3"]["keys"] == [key[:7] + "..."]
    assert key not in loraplex("tenants", "list")
    new = loraplex("tenants", "rotate-key", "t3").split()[-1]
    assert world.registry.get(key_key(key)).value["revoked_s"] is not None
    assert world.registry.get(key_key(new)).value["revoked_s"] is None
