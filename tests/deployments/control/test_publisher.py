"""Publishing is all or nothing, whatever fails and whoever else publishes."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from safetensors.torch import load_file

from deployments.changes.adapters import unused
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import adapter_key
from engine.adapters.digest import Manifest
from engine.adapters.folder_store import FolderStore
from engine.adapters.store import CONFIG, MANIFEST, TENSORS
from engine.errors import (
    AdapterUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
)
from tests.support.peft_folders import (
    lora_tensors,
    peft_config,
    write_adapter,
)
from tests.support.published import everything, make_keeping, refused, stored

P = "base_model.model."


def test_a_version_is_stored_and_registered(keeping):
    tensors = lora_tensors(keeping.spec)
    record = keeping.publish(tensors)
    (version,) = record.versions
    ref = version.ref
    assert record.status == "published" and record.ref == ref
    assert (ref.tenant, ref.name, ref.base_revision, ref.ranks) == ("acme", "bot", "rev-1", (4,))
    assert (version.by, version.published_s, version.base) == ("admin", 100.0, "tiny/llama")
    assert version.asserted_by is None and version.warnings == ()
    assert version.num_modules == 6
    assert version.modules == ("model.layers.*.self_attn.q_proj", "model.layers.*.self_attn.v_proj")
    entry = keeping.registry.get(adapter_key("acme", "bot"))
    assert AdapterRecord.from_value(entry.value) == record
    files = stored(keeping, ref)
    manifest = Manifest.from_bytes(files[MANIFEST].read_bytes())
    assert manifest.digest == ref.digest
    assert {m.scale for m in manifest.modules.values()} == {2.0}
    assert files[TENSORS].stat().st_size == ref.num_bytes
    assert json.loads(files[CONFIG].read_text())["r"] == 4
    kept = load_file(files[TENSORS])
    assert kept.keys() == tensors.keys()
    assert all(torch.equal(kept[name], tensors[name]) for name in tensors)


# C-VERSION-LEAK
def test_identical_bytes_are_no_new_version(keeping):
    """C-VERSION-LEAK."""
    tensors = lora_tensors(keeping.spec)
    first = keeping.publish(tensors)
    before = everything(keeping)
    keeping.now[0] = 200.0
    reordered = dict(reversed(tensors.items()))
    shuffled = peft_config(target_modules=["v_proj", "q_proj"], lora_dropout=0.5)
    assert keeping.publish(reordered, shuffled) == first
    assert everything(keeping) == before


@pytest.mark.parametrize(
    "change",
    [{"lora_alpha": 16}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1}}],
)
def test_other_arithmetic_is_another_version(keeping, change):
    """A-RSLORA: alpha over r is part of the version."""
    tensors = lora_tensors(keeping.spec)
    first = keeping.publish(tensors).ref
    record = keeping.publish(tensors, peft_config(**change))
    assert record.ref.digest != first.digest and len(record.versions) == 2
    assert record.version(first.digest).retired_s is None
    back = keeping.publish(tensors)
    assert back.ref == first and len(back.versions) == 2


def test_names_of_other_writers_are_the_same_version(keeping):
    """A-NOOP-PREFIX (b): without the prefix, or with the name of PEFT's adapter."""
    tensors = lora_tensors(keeping.spec)
    usual = keeping.publish(tensors).ref
    bare = {name.removeprefix(P): tensor for name, tensor in tensors.items()}
    named = {name.replace(".weight", ".default.weight"): t for name, t in tensors.items()}
    for other in (bare, named):
        ref = keeping.publish(other, name="other").ref
        assert (ref.digest, ref.num_bytes) == (usual.digest, usual.num_bytes)
    assert set(load_file(stored(keeping, usual)[TENSORS])) == set(tensors)


def test_a_lost_object_is_stored_again(keeping):
    tensors = lora_tensors(keeping.spec)
    ref = keeping.publish(tensors).ref
    stored(keeping, ref)[TENSORS].unlink()
    keeping.publish(tensors)
    assert stored(keeping, ref)[TENSORS].exists()


@pytest.mark.parametrize("part", [TENSORS, MANIFEST])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:-1] + b"\0"])
def test_a_damaged_object_is_stored_again(keeping, part, damage):
    tensors = lora_tensors(keeping.spec)
    ref = keeping.publish(tensors).ref
    path = stored(keeping, ref)[part]
    good = path.read_bytes()
    path.write_bytes(damage(good))
    keeping.publish(tensors)
    assert path.read_bytes() == good


def test_tenants_share_neither_names_nor_objects(keeping):
    tensors = lora_tensors(keeping.spec)
    one, two = (keeping.publish(tensors, tenant=t).ref for t in ("acme", "beta"))
    assert one.digest == two.digest and one.key != two.key
    keeping.adapters.retire("acme", "bot", "admin")
    assert keeping.publish(tensors, tenant="beta").ref == two


def test_a_retired_name_is_a_tombstone_until_it_is_published_again(keeping):
    tensors = lora_tensors(keeping.spec)
    digest = keeping.publish(tensors).ref.digest
    gone = keeping.adapters.retire("acme", "bot", "bob")
    assert [ref.digest for ref in unused(gone, None, [])] == [digest]
    assert gone.status == "retired" and gone.ref is None
    assert (gone.versions[0].retired_by, gone.versions[0].retired_s) == ("bob", 100.0)
    assert keeping.adapters.retire("acme", "bot", "eve") == gone
    back = keeping.publish(tensors)
    assert back.current == digest and back.versions[0].retired_s is None
    with pytest.raises(NotFound):
        keeping.adapters.retire("acme", "nobody", "bob")


# Names --------------------------------------------------------------------------------------------
# A-TRAVERSAL
@pytest.mark.parametrize("bad", ["../x", "a/b", "Bot", "", "a" * 64, "%2e%2e", "b\0t", "bоt"])
@pytest.mark.parametrize("what", ["tenant", "name"])
def test_a_bad_name_reaches_nothing(keeping, bad, what):
    """A-TRAVERSAL."""
    with pytest.raises(InvalidRequest):
        keeping.publish_folder("x", **{what: bad})
    with pytest.raises(InvalidRequest):
        keeping.adapters.retire(**{"tenant": "acme", "name": "bot", what: bad}, by="x")


def test_an_unknown_tenant_is_not_found(keeping):
    refused(keeping, NotFound, lora_tensors(keeping.spec), tenant="nobody")


# Failures in the middle, and others beside us -----------------------------------------------------
@pytest.mark.parametrize("part", [TENSORS, CONFIG, MANIFEST])
def test_a_store_that_fails_leaves_the_name_as_it_was(tmp_path, part):
    failing = {"now": False}

    class Store(FolderStore):
        def put(self, key, source):
            if failing["now"] and key.endswith(part):
                raise AdapterUnavailable("no space left")
            return super().put(key, source)

    keeping = make_keeping(tmp_path, wrap_store=lambda store: Store(tmp_path / "objects"))
    first = keeping.publish(lora_tensors(keeping.spec))
    failing["now"] = True
    with pytest.raises(AdapterUnavailable):
        keeping.publish(lora_tensors(keeping.spec))
    entry = keeping.registry.get(first.key)
    assert AdapterRecord.from_value(entry.value) == first
    manifests = [key for key in keeping.store.list("adapters/") if key.endswith(MANIFEST)]
    assert len(manifests) == 1
    keeping.registry.close()


def test_publishers_side_by_side_lose_nothing(keeping):
    folders = {}
    for n in range(4):
        folders[n] = write_adapter(keeping.imports / f"f{n}", lora_tensors(keeping.spec))
    results = []

    def work(n):
        for _ in range(5):
            try:
                results.append(keeping.publish_folder(f"f{n}").ref.digest)
                return
            except Conflict:
                continue

    threads = [threading.Thread(target=work, args=(n,)) for n in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = AdapterRecord.from_value(keeping.registry.get(adapter_key("acme", "bot")).value)
    assert len(set(results)) == 4
    assert {v.ref.digest for v in record.versions} == set(results)
