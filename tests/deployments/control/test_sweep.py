"""What the sweep removes, and everything that it leaves alone."""

from __future__ import annotations

import json
import os

import pytest

from deployments.changes.placing import Placing
from deployments.control.publish_order import upload_prefix
from engine.adapters.folder_store import FolderStore
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, object_prefix
from engine.errors import AdapterUnavailable, Unavailable
from tests.support.peft_folders import lora_tensors
from tests.support.published import GRACE_S, make_keeping
from tests.support.s3_server import new_prefix


@pytest.fixture
def keeping(tmp_path):
    keeping = make_keeping(tmp_path, keep_versions=2)
    yield keeping
    keeping.registry.close()


def publish(keeping, **options):
    return keeping.publish(lora_tensors(keeping.spec), **options).versions[-1].ref


def prefixes(keeping):
    return {"/".join(key.split("/")[:3]) for key in keeping.store.list("")}


def prefix(ref):
    return object_prefix(ref.tenant, ref.digest)


def removed(report):
    return {(r.prefix, r.why) for r in report.removed}


def test_what_is_in_use_stays_for_ever(keeping):
    refs = {prefix(publish(keeping, name=name)) for name in ("a", "b", "a")}
    keeping.now[0] += 1e9
    assert keeping.sweep.run().removed == ()
    assert prefixes(keeping) == refs


def test_a_retired_version_stays_as_long_as_a_request_may_need_it(keeping):
    kept, gone = publish(keeping), publish(keeping, placing=Placing(None))
    keeping.adapters.retire("acme", "bot", "me", gone.digest)
    keeping.now[0] += GRACE_S - 1
    report = keeping.sweep.run()
    assert report.removed == () and report.kept_young == 1
    keeping.now[0] += 1
    dry = keeping.sweep.run(dry_run=True)
    assert removed(dry) == {(prefix(gone), "retired")} and dry.dry_run
    assert prefix(gone) in prefixes(keeping)
    report = keeping.sweep.run()
    assert removed(report) == removed(dry) and report.removed[0].num_bytes > gone.num_bytes
    assert prefixes(keeping) == {prefix(kept)}
    assert not keeping.record().version(gone.digest).live  # the tombstone stays
    assert keeping.sweep.run().removed == ()


def test_bytes_that_another_name_has_stay(keeping):
    tensors = lora_tensors(keeping.spec)
    one = keeping.publish(tensors, name="one").ref
    keeping.publish(tensors, name="two")
    keeping.adapters.retire("acme", "one", "me")
    keeping.now[0] += 2 * GRACE_S
    assert keeping.sweep.run().removed == ()
    keeping.adapters.retire("acme", "two", "me")
    assert keeping.sweep.run().removed == ()
    keeping.now[0] += GRACE_S
    assert removed(keeping.sweep.run()) == {(prefix(one), "retired")}


def test_what_was_published_again_stays(keeping):
    tensors = lora_tensors(keeping.spec)
    ref = keeping.publish(tensors).ref
    keeping.adapters.retire("acme", "bot", "me")
    keeping.now[0] += 2 * GRACE_S
    assert keeping.publish(tensors).ref == ref
    assert keeping.sweep.run().removed == ()
    assert keeping.record().ref == ref


def test_an_orphan_goes_once_it_is_old(keeping):
    """Staged, and never registered: control was killed in between."""
    publish(keeping)
    ref = publish(keeping, name="x")
    keeping.registry.delete("adapter/acme/x", None)
    keeping.now[0] += GRACE_S - 1
    assert keeping.sweep.run().removed == ()
    keeping.now[0] += 1
    assert removed(keeping.sweep.run()) == {(prefix(ref), "orphan")}


@pytest.fixture(params=["folder", "s3"])
def planted(request, tmp_path):
    """(keeping over that store, `plant(key, age_s)`): the store's own clock says how old an object
    is that nobody noted."""
    if request.param == "folder":
        keeping = make_keeping(tmp_path)

        def plant(key, age_s):
            keeping.store.put(key, b"x")
            at_s = keeping.now[0] - age_s
            os.utime(tmp_path / "objects" / key, (at_s, at_s))
    else:
        store = request.getfixturevalue("s3").store(new_prefix())
        keeping = make_keeping(tmp_path, wrap_store=lambda _: store)
        keeping.store = store

        def plant(key, age_s):
            """A bucket's clock can't be set, so the sweep's is."""
            store.put(key, b"x")
            keeping.now[0] = store.stored(key)[0].modified_s + age_s

    yield keeping, plant
    keeping.registry.close()


@pytest.mark.parametrize("part", [TENSORS, CONFIG, MANIFEST])
def test_half_a_version_is_as_old_as_the_last_of_its_objects(planted, part):
    keeping, plant = planted
    where = object_prefix("acme", "d" * 64)
    plant(f"{where}/{part}", GRACE_S - 1)
    report = keeping.sweep.run()
    assert report.removed == () and report.kept_young == 1 and report.grace_s == GRACE_S
    keeping.now[0] += 1
    assert removed(keeping.sweep.run()) == {(where, "orphan")}
    assert keeping.store.list("") == []


def test_uploads_left_behind_go_whatever_they_are_called(planted):
    keeping, plant = planted
    keys = [f"{upload_prefix('acme', '100-ab12')}/{CONFIG}", "uploads/acme/x.bin", "uploads/x"]
    for key in keys:
        plant(key, GRACE_S - 5)
    assert keeping.sweep.run().kept_young == 3
    keeping.now[0] += 10
    wanted = {(upload_prefix("acme", "100-ab12"), "upload"), *((k, "upload") for k in keys[1:])}
    assert removed(keeping.sweep.run(dry_run=True)) == wanted
    assert keeping.store.list("") == sorted(keys)
    assert removed(keeping.sweep.run()) == wanted
    assert keeping.store.list("") == []


def test_an_upload_under_way_is_as_young_as_its_last_file(keeping, tmp_path):
    """Its first may have been put long ago."""
    where = upload_prefix("acme", "100-ab12")
    for name, at_s in ((CONFIG, 100.0), (TENSORS, 100.0 + GRACE_S)):
        keeping.store.put(f"{where}/{name}", b"x")
        os.utime(tmp_path / "objects" / where / name, (at_s, at_s))
    keeping.now[0] = 100 + GRACE_S
    assert keeping.sweep.run().removed == ()


def test_half_written_objects_go_and_a_dry_run_counts_them(keeping, tmp_path):
    for name, began_s in (("old", 99), ("young", 101)):
        path = tmp_path / "objects" / ".incoming" / name
        path.write_bytes(b"half")
        os.utime(path, (began_s, began_s))
    keeping.now[0] = 100 + GRACE_S
    assert keeping.sweep.run(dry_run=True).unfinished == 1
    assert keeping.sweep.run().unfinished == 1
    assert keeping.sweep.run(dry_run=True).unfinished == 0


def test_what_lies_elsewhere_is_not_ours(keeping):
    keys = ["notes/readme.txt", "adapters/readme.txt", "adapters/acme/readme.txt", "x"]
    for key in keys:
        keeping.store.put(key, b"x")
    keeping.now[0] += 1e9
    keeping.sweep.run()
    keeping.now[0] += 1e9
    assert keeping.sweep.run().removed == ()
    assert keeping.store.list("") == sorted(keys)


def test_a_record_that_cannot_be_read_protects_its_tenant(keeping):
    ref, other = publish(keeping), publish(keeping, tenant="beta")
    keeping.registry.put("adapter/acme/bot", {"v": 99}, None)
    keeping.registry.delete("adapter/beta/bot", None)
    keeping.now[0] += 2 * GRACE_S
    report = keeping.sweep.run()
    assert report.unreadable == ("adapter/acme/bot",)
    assert removed(report) == {(prefix(other), "orphan")}
    assert prefixes(keeping) == {prefix(ref)}


# C-VERSION-LEAK
def test_hundreds_of_versions_end_in_a_handful_of_objects(keeping):
    """C-VERSION-LEAK: Published one after the other by a trainer; a sweep now and then."""
    for number in range(60):
        publish(keeping)
        keeping.now[0] += 30
        if number % 10 == 9:
            keeping.sweep.run()
    keeping.now[0] += GRACE_S
    keeping.sweep.run()
    record = keeping.record()
    live = {v.ref.digest for v in record.versions if v.live}
    assert len(live) == 4 and record.condemned == ()
    assert prefixes(keeping) == {object_prefix("acme", d) for d in live}
    assert len(json.dumps(record.to_value())) < 10_000


def test_whoever_registers_between_the_sweep_s_looks_keeps_its_objects(tmp_path):
    """The store and the registry were read; then the orphan got its name."""

    class Registry:
        def __init__(self, inner):
            self.inner, self.after_list = inner, None

        def list(self, prefix, **page):
            listing = self.inner.list(prefix, **page)
            if self.after_list is not None:
                self.after_list()
            return listing

        def __getattr__(self, name):
            return getattr(self.inner, name)

    made = []
    keeping = make_keeping(tmp_path, wrap_registry=lambda r: made.append(Registry(r)) or made[0])
    ref = publish(keeping)
    value = keeping.registry.get("adapter/acme/bot").value
    keeping.registry.delete("adapter/acme/bot", None)
    keeping.now[0] += 2 * GRACE_S

    def register():
        made[0].after_list = None
        keeping.registry.put("adapter/acme/bot", value, None)

    made[0].after_list = register
    assert keeping.sweep.run().removed == ()
    assert prefixes(keeping) == {prefix(ref)}
    keeping.registry.close()


def test_an_unreachable_store_or_registry_removes_nothing(tmp_path):
    class Store(FolderStore):
        away = False

        def list(self, prefix):
            if self.away:
                raise AdapterUnavailable("away")
            return super().list(prefix)

    store = Store(tmp_path / "objects")
    keeping = make_keeping(tmp_path, wrap_store=lambda _: store)
    publish(keeping)
    keeping.registry.delete("adapter/acme/bot", None)
    keeping.now[0] += 2 * GRACE_S
    store.away = True
    with pytest.raises(Unavailable):
        keeping.sweep.run()
    store.away = False
    keeping.registry.close()
    with pytest.raises(Unavailable):
        keeping.sweep.run()
    assert len(prefixes(keeping)) == 1
