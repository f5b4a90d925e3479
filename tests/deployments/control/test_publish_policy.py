"""Names, quotas and ranks at publish: what a policy forbids leaves everything as it was."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from deployments.changes.placing import Placing
from deployments.control.judge import PublishPolicy
from deployments.registry.records import TenantRecord
from deployments.registry.version_record import Probe
from engine.adapters.store import TENSORS, object_prefix
from engine.errors import AdapterRejected, Conflict, InvalidRequest, PermissionDenied
from tests.support.peft_folders import lora_tensors, peft_config
from tests.support.published import make_keeping


def allow(keeping, tenant="acme", **limits):
    record = dataclasses.replace(TenantRecord(tenant), **limits)
    keeping.registry.put(record.key, record.to_value(), None)


def publish(keeping, rank=4, **options):
    return keeping.publish(lora_tensors(keeping.spec, rank), peft_config(r=rank), **options)


def test_names_at_publish(keeping):
    one = publish(keeping).current
    kept = publish(keeping, placing=Placing(None))
    assert kept.current == one and kept.versions[-1].live
    canary = publish(keeping, placing=Placing("canary", 0.1))
    assert canary.current == one
    assert canary.aliases["production"].canary == canary.versions[-1].ref.digest
    beta = publish(keeping, placing=Placing("beta"))
    assert beta.aliases["beta"].digest == beta.versions[-1].ref.digest and beta.current == one
    with pytest.raises(InvalidRequest, match="Only a canary"):
        publish(keeping, placing=Placing("beta", 0.5))
    with pytest.raises(Conflict, match="no production"):
        publish(keeping, name="fresh", placing=Placing("canary", 0.5))
    unnamed = publish(keeping, name="unnamed", placing=Placing(None))
    assert unnamed.status == "kept" and unnamed.ref is None


def test_the_same_bytes_again_move_a_name_and_nothing_else(keeping):
    tensors = lora_tensors(keeping.spec)
    one = keeping.publish(tensors)
    publish(keeping)
    before = keeping.store.list("")
    back = keeping.publish(tensors)
    assert back.current == one.current and len(back.versions) == 2
    assert keeping.store.list("") == before
    assert keeping.publish(tensors, by="eve") == back


def test_probes_stay_with_their_version(keeping):
    keeping.publish(lora_tensors(keeping.spec), name="other")
    staged = keeping.record(name="other").versions[0]
    probed = dataclasses.replace(staged, probes=(Probe("hi", 5, "", "yo"),))
    keeping.publisher.register(probed, Placing())
    assert keeping.record(name="other").versions == (probed,)
    keeping.publisher.register(dataclasses.replace(staged), Placing("beta"))
    assert keeping.record(name="other").versions == (probed,)


@pytest.mark.parametrize(
    ("policy", "limits", "said"),
    [
        ({"max_rank": 7}, {}, "at most 7"),
        ({}, {"max_rank": 7}, "at most 7"),
        ({"allowed_ranks": (4, 16)}, {}, "allowed are 4, 16"),
        ({}, {"allowed_ranks": (16, 4)}, "allowed are 4, 16"),
        ({"max_rank": 64}, {"max_rank": 7}, "at most 7"),
    ],
)
def test_ranks_that_a_policy_forbids(tmp_path, policy, limits, said):
    keeping = make_keeping(tmp_path, policy=PublishPolicy(torch.float32, 1 << 20, **policy))
    allow(keeping, **limits)
    publish(keeping, 4)
    before = keeping.registry.list("").entries, keeping.store.list("")
    with pytest.raises(AdapterRejected, match=said) as raised:
        publish(keeping, 8, name="wide")
    assert raised.value.code == "adapter_rank"
    assert (keeping.registry.list("").entries, keeping.store.list("")) == before
    keeping.registry.close()


def test_a_tenant_has_so_many_adapters_and_no_more(keeping):
    allow(keeping, max_adapters=2)
    for name in ("one", "two", "one"):
        publish(keeping, name=name)
    stored = keeping.store.list("")
    with pytest.raises(PermissionDenied, match="Retire one first"):
        publish(keeping, name="three")
    assert keeping.store.list("") == stored
    publish(keeping, tenant="beta", name="three")
    keeping.adapters.retire("acme", "two", "me")
    publish(keeping, name="three")


def test_a_tenant_has_so_many_bytes_and_no_more(keeping):
    tensors = lora_tensors(keeping.spec)
    size = keeping.publish(tensors).ref.num_bytes
    allow(keeping, max_adapter_bytes=2 * size)
    keeping.publish(tensors, name="same")  # stored once, counted once
    allow(keeping, max_adapter_bytes=1)
    keeping.publish(tensors, name="same")  # nothing new: no quota is asked
    allow(keeping, max_adapter_bytes=2 * size)
    publish(keeping)
    with pytest.raises(PermissionDenied, match=str(2 * size)):
        publish(keeping)
    keeping.adapters.retire("acme", "same", "me")
    with pytest.raises(PermissionDenied):
        publish(keeping)
    first = keeping.record().versions[0].ref
    keeping.adapters.retire("acme", "bot", "me", first.digest)
    publish(keeping)


def test_a_version_whose_object_is_not_whole_is_not_promoted(keeping):
    one, two = publish(keeping).current, publish(keeping).current
    keeping.store.put(f"{object_prefix('acme', one)}/{TENSORS}", b"short")
    for change in (
        lambda: keeping.adapters.promote("acme", "bot", one, Placing()),
        lambda: keeping.adapters.promote("acme", "bot", one, Placing("canary", 0.1)),
        lambda: keeping.adapters.roll_back("acme", "bot"),
    ):
        with pytest.raises(Conflict, match="Publish its files again"):
            change()
    assert keeping.record().current == two


def test_old_versions_are_retired_beyond_the_newest(tmp_path):
    keeping = make_keeping(tmp_path, keep_versions=2)
    first = publish(keeping).current
    keeping.adapters.promote("acme", "bot", first, Placing("pinned"))
    for _ in range(6):
        publish(keeping)
    record = keeping.record()
    live = [v.ref.digest for v in record.versions if v.live]
    # The pinned, the two newest without a name, what rollback goes to, and production.
    assert len(live) == 5 and first in live and live[-1] == record.current
    assert keeping.adapters.roll_back("acme", "bot").current == live[-2]
    keeping.registry.close()


# C-VERSION-LEAK
@pytest.mark.slow
def test_one_name_published_five_hundred_times_keeps_a_small_record(keeping):
    """C-VERSION-LEAK, through registry and rules at publish; the bytes are those of one folder."""
    version = publish(keeping).versions[0]
    tenant = TenantRecord("acme")
    for number in range(500):
        ref = dataclasses.replace(version.ref, digest=f"{number:064x}")
        newer = dataclasses.replace(version, ref=ref)
        keeping.adapters.add(newer, Placing(), tenant)
    record = keeping.record()
    assert sum(v.live for v in record.versions) == 12
    assert len(json.dumps(record.to_value())) < 80_000
