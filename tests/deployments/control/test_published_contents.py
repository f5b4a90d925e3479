"""What an adapter's file may hold: what can't be served is refused with its reason."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from deployments.control.judge import PublishPolicy
from engine.adapters.store import CONFIG, TENSORS
from engine.errors import (
    AdapterRejected,
    InvalidRequest,
    LoraplexError,
)
from tests.support.peft_folders import (
    lora_tensors,
    module_names,
    peft_config,
    write_adapter,
)
from tests.support.published import everything, make_keeping, refused, stored

P = "base_model.model."


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
