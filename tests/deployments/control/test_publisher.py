"""Publishing is all or nothing, and what can't be served is refused with its reason."""

from __future__ import annotations

import json
import math
import pickle
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from deployments.changes.adapters import unused
from deployments.control.import_folder import ImportFolder
from deployments.control.judge import PublishPolicy
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import adapter_key
from engine.adapters.digest import Manifest
from engine.adapters.folder_store import FolderStore
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, object_prefix
from engine.errors import (
    AdapterRejected,
    AdapterUnavailable,
    Conflict,
    InvalidRequest,
    LoraplexError,
    NotFound,
)
from tests.support.peft_folders import (
    lora_tensors,
    module_names,
    peft_config,
    write_adapter,
)
from tests.support.published import make_keeping

P = "base_model.model."


@pytest.fixture
def keeping(tmp_path):
    keeping = make_keeping(tmp_path)
    yield keeping
    keeping.registry.check()
    keeping.registry.close()


def everything(keeping):
    """All that a failed publish must leave as it was."""
    return keeping.registry.list("").entries, keeping.store.list("")


def refused(keeping, error, *args, words=None, **options) -> LoraplexError:
    before = everything(keeping)
    with pytest.raises(error, match=words) as raised:
        keeping.publish(*args, **options)
    assert everything(keeping) == before
    assert 400 <= raised.value.status < 500
    return raised.value


def stored(keeping, ref):
    return {
        part: keeping.store.local_path(f"{object_prefix(ref.tenant, ref.digest)}/{part}")
        for part in (TENSORS, CONFIG, MANIFEST)
    }


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


# Folders ------------------------------------------------------------------------------------------
@pytest.fixture
def outside(keeping, tmp_path):
    return write_adapter(tmp_path / "outside", lora_tensors(keeping.spec))


@pytest.mark.parametrize(
    "folder",
    ["../outside", "{root}/outside", "x/../../outside", "link", "loop", "../nothing", "a\0b"]
    + ["{root}/imports-2", "/etc", "link/.", "{root}"],
)
def test_a_folder_elsewhere_is_refused_in_the_same_words(keeping, outside, folder):
    """Whether or not anything is there."""
    (keeping.imports / "link").symlink_to(outside)
    (keeping.imports / "loop").symlink_to(keeping.imports / "loop")
    write_adapter(keeping.root / "imports-2", lora_tensors(keeping.spec))
    with pytest.raises(InvalidRequest) as raised:
        keeping.publish_folder(folder.format(root=keeping.root))
    assert raised.value.code == "outside_import_root"
    assert raised.value.message == (
        "The folder is not below this service's import root, links followed. Name one below it, or"
        " upload the adapter."
    )


def test_a_file_elsewhere_is_refused_too(keeping, outside):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    for name in (TENSORS, CONFIG):
        real = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
        with pytest.raises(InvalidRequest, match=rf"{name} is a link that leads out of .*cp -L"):
            keeping.publish_folder("x")
        (folder / name).unlink()
        (folder / name).write_bytes(real)
    (folder / "tokenizer.json").symlink_to(outside / "nothing")
    with pytest.raises(InvalidRequest, match="tokenizer.json is a link"):
        keeping.publish_folder("x")
    (folder / "tokenizer.json").unlink()
    keeping.publish_folder("x")


def test_links_that_stay_inside_are_followed(keeping):
    """As in a Hugging Face cache, where files are links to blobs."""
    folder = write_adapter(keeping.imports / "blobs", lora_tensors(keeping.spec))
    (keeping.imports / "snapshot").mkdir()
    for name in (TENSORS, CONFIG):
        (keeping.imports / "snapshot" / name).symlink_to(folder / name)
    keeping.publish_folder("snapshot")
    keeping.publish_folder(keeping.imports / "blobs")


def test_a_missing_folder_is_not_found(keeping):
    for folder in ("nothing", "a" * 100):
        with pytest.raises(NotFound):
            keeping.publish_folder(folder)
    with pytest.raises(InvalidRequest):
        keeping.publish_folder("a" * 300)


def test_without_an_import_root_nothing_is_published():
    with pytest.raises(InvalidRequest, match="import_root"):
        ImportFolder(None).files("x")


# Files --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt", "adapter.pkl"])
def test_a_pickle_is_refused_with_the_remedy_and_never_read(keeping, name):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    (folder / TENSORS).unlink()
    (folder / name).write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(AdapterRejected, match="safe_serialization"):
        keeping.publish_folder("x")


def test_a_pickle_by_the_name_of_a_safetensors_file_is_no_such_file(keeping):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    torch.save({"x": torch.zeros(3)}, folder / TENSORS)
    with pytest.raises(AdapterRejected, match="can't be read"):
        keeping.publish_folder("x")


@pytest.mark.parametrize("name", [TENSORS, CONFIG])
def test_a_missing_file_is_named(keeping, name):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    (folder / name).unlink()
    with pytest.raises(AdapterRejected, match=name):
        keeping.publish_folder("x")
    (folder / name).mkdir()
    with pytest.raises(AdapterRejected, match=name):
        keeping.publish_folder("x")


# A-EMPTY-ZERO3 (d)
@pytest.mark.parametrize("size", [0, 5, -1])
def test_a_truncated_file_is_rejected(keeping, size):
    """A-EMPTY-ZERO3 (d)."""
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    data = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(data[:size])
    with pytest.raises(AdapterRejected, match="can't be read"):
        keeping.publish_folder("x")
    assert keeping.store.list("") == []


# Contents -----------------------------------------------------------------------------------------
def test_wrong_shapes_missing_tensors_and_an_empty_file_are_refused(keeping):
    tensors = lora_tensors(keeping.spec)
    refused(keeping, AdapterRejected, {}, words="no tensors")
    refused(keeping, AdapterRejected, tensors, peft_config(r=8), words="shape")
    name = f"{P}model.layers.1.self_attn.v_proj.lora_A.weight"
    fewer = {n: t for n, t in tensors.items() if n != name}
    assert name in refused(keeping, AdapterRejected, fewer).message


# A-NONFINITE
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_by_its_tensor(keeping, value):
    """A-NONFINITE."""
    tensors = lora_tensors(keeping.spec)
    name = f"{P}model.layers.2.self_attn.v_proj.lora_B.weight"
    tensors[name][1, 2] = value
    assert name in refused(keeping, AdapterRejected, tensors, words="not finite").message


def test_the_serving_dtype_decides_what_is_finite(tmp_path):
    keeping = make_keeping(tmp_path, policy=PublishPolicy(torch.float16, 1 << 20))
    tensors = lora_tensors(keeping.spec)
    tensors[f"{P}model.layers.2.self_attn.v_proj.lora_B.weight"][0, 0] = 1e6
    refused(keeping, AdapterRejected, tensors, words="float16")
    keeping.registry.close()


def test_dtypes_may_be_mixed(keeping):
    tensors = lora_tensors(keeping.spec)
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    mixed = {n: t.to(dtypes[i % 3]) for i, (n, t) in enumerate(tensors.items())}
    assert keeping.publish(mixed).status == "published"


def test_an_adapter_that_does_nothing_is_published_with_a_warning(keeping):
    """A-EMPTY-ZERO3 (e)."""
    tensors = {n: t * 0 if "lora_B" in n else t for n, t in lora_tensors(keeping.spec).items()}
    assert keeping.publish(tensors).versions[0].warnings == (
        "every B is zero: it answers as the base does",
    )


def test_an_adapter_beyond_a_replica_s_room_is_refused_with_both_numbers(tmp_path):
    keeping = make_keeping(tmp_path, policy=PublishPolicy(torch.float32, 3071))
    message = refused(keeping, AdapterRejected, lora_tensors(keeping.spec)).message
    assert "3072" in message and "3071" in message
    keeping.registry.close()


# A wrong base -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "base", ["other/model", "", None, "tiny/llama/", "http://x/y", "/etc/passwd"]
)
def test_another_base_needs_the_publisher_s_word(keeping, base):
    tensors, config = lora_tensors(keeping.spec), peft_config(base_model_name_or_path=base)
    error = refused(keeping, AdapterRejected, tensors, config, words="--base tiny/llama")
    assert error.code == "adapter_wrong_base"
    version = keeping.publish(tensors, config, base="tiny/llama", by="eve").versions[0]
    assert (version.base, version.asserted_by) == ("tiny/llama", "eve")


def test_an_accepted_name_of_the_base_needs_no_word(keeping):
    tensors, config = (
        lora_tensors(keeping.spec),
        peft_config(base_model_name_or_path="tiny/llama-alias"),
    )
    version = keeping.publish(tensors, config, base="tiny/llama").versions[0]
    assert (version.base, version.asserted_by) == ("tiny/llama-alias", None)


def test_a_word_for_a_base_that_is_not_served_is_refused(keeping):
    refused(keeping, InvalidRequest, lora_tensors(keeping.spec), base="other", words="tiny/llama")


# Copies of the base -------------------------------------------------------------------------------
def base_weights(keeping):
    return load_file(keeping.root / "base" / "model.safetensors")


# A-MODULES-TO-SAVE
@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_full_weight_that_repeats_the_base_is_dropped(keeping, name):
    """A-MODULES-TO-SAVE (c), (e): the head is tied, so the base has the embedding alone."""
    tensors = lora_tensors(keeping.spec)
    plain = keeping.publish(tensors, name="plain")
    copy = {**tensors, P + name: base_weights(keeping)["model.embed_tokens.weight"].clone()}
    record = keeping.publish(copy, name="copy")
    assert record.ref.digest == plain.ref.digest
    assert record.versions[0].warnings == (f"{P}{name} repeats the base and was dropped",)
    with safe_open(stored(keeping, record.ref)[TENSORS], "pt") as file:
        assert set(file.keys()) == set(tensors)


def test_a_full_weight_that_changes_the_base_is_refused(keeping):
    """A-MODULES-TO-SAVE (a) changed, (b) grown vocabulary."""
    tensors, table = lora_tensors(keeping.spec), base_weights(keeping)["model.embed_tokens.weight"]
    changed = table.clone()
    changed[3, 3] += 1
    for value in (changed, torch.cat([table, table[:4]]), changed.to(torch.bfloat16)):
        full = {**tensors, f"{P}lm_head.modules_to_save.default.weight": value}
        refused(keeping, AdapterRejected, full, words="lm_head")


@pytest.mark.parametrize("revision", ["main", None, "", "rev-1"])
def test_the_base_s_own_revision_needs_no_word(keeping, revision):
    version = keeping.publish(lora_tensors(keeping.spec), peft_config(revision=revision)).versions
    assert (version[0].asserted_by, version[0].warnings) == (None, ())


def test_another_revision_of_the_base_needs_the_publisher_s_word(keeping):
    tensors, config = lora_tensors(keeping.spec), peft_config(revision="rev-2")
    error = refused(keeping, AdapterRejected, tensors, config, words="rev-2.*rev-1.*--base")
    assert error.code == "adapter_wrong_base"
    version = keeping.publish(tensors, config, base="tiny/llama", by="eve").versions[0]
    assert (version.base, version.asserted_by) == ("tiny/llama", "eve")
    assert "rev-2" in version.warnings[0]


# A-BIAS
def test_a_bias_is_refused_unless_it_is_the_base_s_own(keeping):
    """A-BIAS."""
    tensors = lora_tensors(keeping.spec)
    name = "model.layers.0.self_attn.q_proj.bias"
    own = base_weights(keeping)[name]
    keeping.publish({**tensors, P + name: own}, peft_config(bias="all"))
    for config in (peft_config(bias="all"), peft_config(bias="lora_only"), peft_config()):
        for extra in ({P + name: own + 1}, {f"{P}model.layers.1.mlp.up_proj.bias": own}):
            refused(keeping, AdapterRejected, {**tensors, **extra}, config, words="bias")


@pytest.mark.parametrize("flag", ["all", "lora_only"])
def test_a_trained_bias_that_is_not_in_the_file_is_missed(keeping, flag):
    """A-BIAS: PEFT saves every bias that it trains; of a base without any there is none to save."""
    tensors = lora_tensors(keeping.spec)
    error = refused(keeping, AdapterRejected, tensors, peft_config(bias=flag), words="bias 'none'")
    assert (error.code, error.param) == ("adapter_incomplete", "bias")
    assert "model.layers.0.self_attn.q_proj.bias" in error.message
    names = module_names(keeping.spec, ("self_attn.v_proj",))
    others = lora_tensors(keeping.spec, names=names)
    config = peft_config(bias=flag, target_modules=["v_proj"])
    if flag == "all":
        refused(keeping, AdapterRejected, others, config, words="q_proj.bias")
    else:
        assert "has none there" in keeping.publish(others, config).versions[0].warnings[0]


# Tokens that were added ---------------------------------------------------------------------------
NEW_TOKEN = {
    "added_tokens.json": {"</s>": 2, "<new>": 40},
    "tokenizer_config.json": {"added_tokens_decoder": {"40": {"content": "<new>"}}},
    "tokenizer.json": {"added_tokens": [{"content": "<new>", "id": 40}]},
}
OWN_TOKEN = {
    "added_tokens.json": {"</s>": 2},
    "tokenizer_config.json": {"added_tokens_decoder": {"2": {"content": "</s>"}}},
    "tokenizer.json": {"added_tokens": [{"content": "<s>", "id": 1}]},
}


@pytest.mark.parametrize("name", NEW_TOKEN)
def test_added_tokens_are_refused_unless_they_are_the_base_s_own(keeping, name):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    before = everything(keeping)
    moved = json.dumps(OWN_TOKEN[name]).replace("2", "3").replace('"id": 1', '"id": 3')
    wrong = [json.dumps(NEW_TOKEN[name]), moved, "[1", '["x"]', "7"]
    if name != "added_tokens.json":
        wrong.append(json.dumps({"added_tokens": [{}], "added_tokens_decoder": {"x": {}}}))
    for said in wrong:
        (folder / name).write_text(said)
        with pytest.raises(AdapterRejected, match=name) as raised:
            keeping.publish_folder("x")
        assert raised.value.code == "adapter_added_tokens"
        assert "without its tokenizer files" in raised.value.message
        assert everything(keeping) == before
    (folder / name).write_text(json.dumps(OWN_TOKEN[name]))
    assert keeping.publish_folder("x").versions[0].warnings == ()


def test_lora_bias_is_served(keeping):
    tensors = lora_tensors(keeping.spec, bias=True)
    assert keeping.publish(tensors, peft_config(lora_bias=True)).status == "published"


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


# Whatever a tenant hands in -----------------------------------------------------------------------
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.floats(allow_nan=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(sorted(peft_config())), value=JSON)
def test_any_config_is_published_or_refused_with_a_4xx(keeping, key, value):
    tensors = lora_tensors(keeping.spec)
    try:
        keeping.publish(tensors, peft_config(**{key: value}))
    except LoraplexError as error:
        assert 400 <= error.status < 500, error


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_tensors_are_published_or_refused_with_a_4xx(keeping, data):
    tensors = lora_tensors(keeping.spec)
    names = sorted(tensors)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["drop", "shape", "rename", "dtype"])):
            case "drop":
                tensors.pop(name, None)
            case "shape":
                shape = data.draw(st.lists(st.integers(0, 17), max_size=3))
                tensors[name] = torch.randn(shape)
            case "rename":
                cut = data.draw(st.integers(0, len(name) - 1))
                if name in tensors:
                    tensors[name[cut:]] = tensors.pop(name)
            case "dtype" if name in tensors:
                dtype = data.draw(st.sampled_from([torch.int8, torch.float8_e5m2, torch.bool]))
                tensors[name] = tensors[name].to(dtype)
    folder = keeping.imports / "any"
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(peft_config()))
    save_file(tensors, folder / TENSORS)
    try:
        record = keeping.publish_folder("any", name="any")
    except LoraplexError as error:
        assert 400 <= error.status < 500, error
    else:
        assert set(load_file(stored(keeping, record.ref)[TENSORS])) == set(tensors)
        assert record.versions[-1].num_modules == len(module_names(keeping.spec))
