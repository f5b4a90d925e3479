"""A registry made anew from the object store stands for what the lost one stood for."""

from __future__ import annotations

import pytest

from deployments.changes.placing import Placing
from deployments.control.rebuild import rebuild
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord
from deployments.registry.sqlite import SqliteRegistry
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, object_prefix
from tests.support.peft_folders import lora_tensors, peft_config
from tests.support.published import make_keeping


@pytest.fixture
def empty(tmp_path):
    registry = SqliteRegistry(tmp_path / "new.db")
    yield registry
    registry.close()


def publish(keeping, **options):
    keeping.now[0] += 10
    return keeping.publish(lora_tensors(keeping.spec), **options)


def restored(registry):
    return {e.key: e.value for e in registry.list("adapter/").entries}


def test_adapters_come_back_as_they_were(keeping, empty):
    publish(keeping)
    publish(keeping, by="eve")
    other = peft_config(base_model_name_or_path="other/model")
    keeping.publish(lora_tensors(keeping.spec), other, tenant="beta", base="tiny/llama", by="bob")
    report = rebuild(empty, keeping.store)
    assert report.restored == (("acme/bot", 2), ("beta/bot", 1))
    assert (report.kept, report.skipped) == ((), ())
    assert report.tenants == ("acme", "beta")
    assert restored(empty) == restored(keeping.registry)


def test_production_is_what_was_promoted_last(keeping, empty):
    one = publish(keeping).current
    two = publish(keeping).current
    publish(keeping, placing=Placing(None))
    keeping.now[0] += 10
    keeping.adapters.roll_back("acme", "bot")
    rebuild(empty, keeping.store)
    (value,) = restored(empty).values()
    assert value["aliases"]["production"]["digest"] == one
    assert value["aliases"]["production"]["history"] == [two]
    assert len(value["versions"]) == 3


def test_mending_an_object_keeps_what_was_noted(keeping, empty):
    tensors = lora_tensors(keeping.spec)
    ref = keeping.publish(tensors).ref
    newer = publish(keeping).current
    keeping.store.delete(f"{object_prefix('acme', ref.digest)}/{TENSORS}")
    keeping.publish(tensors, placing=Placing(None))
    rebuild(empty, keeping.store)
    (value,) = restored(empty).values()
    assert value["aliases"]["production"]["digest"] == newer
    assert value["aliases"]["production"]["history"] == [ref.digest]


def test_the_same_bytes_under_two_names_are_two_adapters(keeping, empty):
    tensors = lora_tensors(keeping.spec)
    for name in ("one", "two"):
        keeping.publish(tensors, name=name)
    assert rebuild(empty, keeping.store).restored == (("acme/one", 1), ("acme/two", 1))


def test_what_was_retired_stays_retired(keeping, empty):
    publish(keeping)
    publish(keeping, name="gone")
    keeping.adapters.retire("acme", "gone", "me")
    report = rebuild(empty, keeping.store)
    assert [name for name, _ in report.restored] == ["acme/bot"]
    ((_, why),) = report.skipped
    assert "was retired" in why


def test_what_retired_by_itself_stays_retired_though_its_objects_are_still_there(tmp_path, empty):
    """Newer versions that no name stands for, and then a promotion, have taken its place."""
    keeping = make_keeping(tmp_path, keep_versions=1)
    unnamed = Placing(None)
    every = [publish(keeping, placing=unnamed).versions[-1].ref.digest for _ in range(3)]
    keeping.adapters.promote("acme", "bot", every[-1], Placing())
    every.append(publish(keeping, placing=unnamed).versions[-1].ref.digest)
    live = [v.ref.digest for v in keeping.record().versions if v.live]
    assert live == every[2:]
    assert all(keeping.store.list(f"{object_prefix('acme', digest)}/") for digest in every)
    rebuild(empty, keeping.store)
    (value,) = restored(empty).values()
    assert [v.ref.digest for v in AdapterRecord.from_value(value).versions] == live
    keeping.registry.close()


@pytest.mark.parametrize(
    ("part", "data", "said"),
    [
        (MANIFEST, None, "never stored whole"),
        (MANIFEST, b"{}", "damaged"),
        (TENSORS, b"x", "not whole"),
        (TENSORS, None, "not whole"),
        ("record.bot.json", b"[]", "no sidecar"),
        ("record.bot.json", b'{"v": 9}', "no sidecar"),
    ],
)
def test_what_is_damaged_is_left_out_with_the_reason(keeping, empty, part, data, said):
    ref = publish(keeping).ref
    good = publish(keeping, name="good")
    key = f"{object_prefix('acme', ref.digest)}/{part}"
    if data is None:
        keeping.store.delete(key)
    else:
        keeping.store.put(key, data)
    report = rebuild(empty, keeping.store)
    assert report.restored == (("acme/good", 1),)
    assert report.skipped[0][0] == ref.key and said in report.skipped[0][1]
    assert set(restored(empty)) == {good.key}


def test_records_that_are_there_stay(keeping):
    record = publish(keeping)
    keeping.adapters.promote("acme", "bot", record.current, Placing("beta"))
    before = keeping.registry.list("")
    report = rebuild(keeping.registry, keeping.store)
    assert report.kept == ("acme/bot",) and report.restored == () and report.tenants == ()
    assert keeping.registry.list("") == before


def test_a_dry_run_changes_nothing(keeping, empty):
    publish(keeping)
    record = TenantRecord("acme")
    empty.put(record.key, record.to_value(), None)
    report = rebuild(empty, keeping.store, dry_run=True)
    assert report.restored == (("acme/bot", 1),) and report.dry_run and report.tenants == ()
    assert restored(empty) == {}
    assert rebuild(keeping.registry, keeping.store, dry_run=True).kept == ("acme/bot",)


def test_a_rebuilt_adapter_is_served_and_published_on(keeping, empty, tmp_path):
    tensors = lora_tensors(keeping.spec)
    ref = keeping.publish(tensors).ref
    lost = keeping.registry
    for entry in lost.list("adapter/").entries:
        lost.delete(entry.key, None)
    rebuild(lost, keeping.store)
    assert keeping.record().resolve(None, lambda: 0.5) == ref
    assert keeping.publish(tensors).ref == ref
    assert len(publish(keeping).versions) == 2
    assert keeping.store.size(f"{object_prefix('acme', ref.digest)}/{CONFIG}")
