"""Where an adapter may be published from, and what no name or link leads to."""

from __future__ import annotations

import dataclasses

import pytest

from deployments.control.publish_order import Source, upload_prefix
from deployments.control.sources import import_prefix
from engine.adapters.store import CONFIG, TENSORS
from engine.errors import AdapterRejected, InvalidRequest, NotFound, TooLarge
from tests.support.peft_folders import lora_tensors, write_adapter


@pytest.fixture
def folder(keeping, tmp_path):
    return write_adapter(tmp_path / "made", lora_tensors(keeping.spec))


def put(store, prefix, folder, *names):
    for name in names or (CONFIG, TENSORS):
        store.put(f"{prefix}/{name}", folder / name)


@pytest.mark.parametrize("prefix", ["run-7", "run-7/", "imports/acme/run-7", "deep/run-7"])
def test_a_prefix_of_the_tenant_s_own(keeping, folder, prefix):
    for where in ("run-7", "deep/run-7"):
        put(keeping.import_store, f"imports/acme/{where}", folder)
    assert keeping.publish_from(Source(prefix=prefix)).status == "published"


# A-TRAVERSAL
@pytest.mark.parametrize(
    "prefix",
    ["../beta/run", "imports/beta/run", "imports/acme/../beta/run", "/etc", "a//b", "", "/", "."]
    + ["s3://bucket/imports/acme/run", "file:///etc", "a\0b", "%2e%2e/beta", "x" * 1001]
    + ["imports/", "imports/acme", "имя"],
)
def test_another_prefix_is_refused_in_the_same_words(keeping, folder, prefix):
    """A-TRAVERSAL: Whether or not anything is there."""
    put(keeping.import_store, "imports/beta/run", folder)
    with pytest.raises(InvalidRequest) as raised:
        keeping.publish_from(Source(prefix=prefix))
    assert raised.value.code == "outside_imports"
    assert raised.value.message == (
        "The prefix is not below imports/acme/ of this service's import store."
    )


def test_a_tenant_s_name_is_no_beginning_of_another_s():
    assert import_prefix("imports/acme/x", "acme") == "imports/acme/x"
    with pytest.raises(InvalidRequest):
        import_prefix("imports/acme2/x", "acme")


def test_what_a_prefix_lacks_is_said(keeping, folder):
    with pytest.raises(NotFound, match="nothing under that prefix"):
        keeping.publish_from(Source(prefix="run"))
    put(keeping.import_store, "imports/acme/run", folder, CONFIG)
    with pytest.raises(AdapterRejected, match=TENSORS):
        keeping.publish_from(Source(prefix="run"))
    keeping.import_store.put("imports/acme/run/adapter_model.bin", b"x")
    with pytest.raises(AdapterRejected, match="is a pickle"):
        keeping.publish_from(Source(prefix="run"))
    keeping.import_store.put(f"imports/acme/run/{TENSORS}", b"x" * ((1 << 24) + 1))
    with pytest.raises(TooLarge, match=TENSORS):
        keeping.publish_from(Source(prefix="run"))


def test_an_upload_is_gone_afterwards_whatever_came_of_it(keeping, folder):
    one, two = (upload_prefix("acme", f"100-{word}") for word in ("a1", "b2"))
    put(keeping.store, one, folder)
    put(keeping.store, two, folder, TENSORS)
    assert keeping.publish_from(Source(upload="100-a1")).status == "published"
    assert keeping.store.list(one) == []
    with pytest.raises(AdapterRejected, match=CONFIG):
        keeping.publish_from(Source(upload="100-b2"))
    assert keeping.store.list("uploads/") == []


def test_a_tokenizer_s_files_come_with_the_adapter(keeping, folder):
    (folder / "added_tokens.json").write_text('{"<new>": 40}')
    for where, source in (
        (keeping.import_store, Source(prefix="run")),
        (keeping.store, Source(upload="100-a1")),
    ):
        prefix = upload_prefix("acme", "100-a1") if source.upload else "imports/acme/run"
        put(where, prefix, folder, CONFIG, TENSORS, "added_tokens.json")
        with pytest.raises(AdapterRejected, match="adds the token '<new>'"):
            keeping.publish_from(source)


@pytest.mark.parametrize("upload", ["../x-1", "a/b-1", "", "noday", "-1"])
def test_an_upload_s_name_is_no_path(upload):
    with pytest.raises(ValueError, match="names no upload"):
        upload_prefix("acme", upload)


def test_a_tenant_s_own_key_reads_only_its_own_folder(keeping, folder):
    write_adapter(keeping.imports / "acme" / "x", lora_tensors(keeping.spec))
    write_adapter(keeping.imports / "beta" / "x", lora_tensors(keeping.spec))
    (keeping.imports / "acme" / "link").symlink_to(keeping.imports / "beta" / "x")
    own = Source(own=True)
    assert keeping.publish_from(dataclasses.replace(own, folder="x")).status == "published"
    for outside in ("../beta/x", str(keeping.imports / "beta" / "x"), "link", ".."):
        with pytest.raises(InvalidRequest, match="not below the folder acme/ of this service's"):
            keeping.publish_from(dataclasses.replace(own, folder=outside))
    assert keeping.publish_folder("beta/x").status == "published"  # an admin's word
