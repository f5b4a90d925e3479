"""adapter_config.json: what is used, ignored, refused and unknown."""

from __future__ import annotations

import json
import math

import pytest
from peft import LoraConfig

from engine.adapters.peft import IGNORED, MAX_CONFIG_BYTES, REFUSED, USED, read_config
from engine.errors import AdapterRejected
from tests.support.peft_folders import peft_config


def read(**changes):
    return read_config(json.dumps(peft_config(**changes)).encode())


def test_a_plain_config_is_read():
    config = read()
    assert (config.rank, config.alpha, config.base) == (4, 8.0, "tiny/llama")
    assert config.targets == ("q_proj", "v_proj")
    assert config.scale(4, 8.0) == 2.0


def test_every_key_that_peft_writes_is_known():
    """A-NEW-FIELDS: a PEFT release that adds a key fails here first."""
    written = set(LoraConfig(r=4).to_dict()) | {"auto_mapping"}
    assert written <= USED | IGNORED | set(REFUSED)
    assert not (USED & IGNORED) and not (USED & set(REFUSED)) and not (IGNORED & set(REFUSED))


def test_what_peft_saves_by_default_is_accepted(tmp_path):
    LoraConfig(r=4, target_modules=["q_proj"]).save_pretrained(tmp_path)
    assert read_config((tmp_path / "adapter_config.json").read_bytes()).rank == 4


# A-RSLORA
@pytest.mark.parametrize(("flag", "scale"), [(True, 8.0), (False, 1.0), (None, 1.0)])
def test_rslora_divides_by_the_root(flag, scale):
    """A-RSLORA."""
    config = read(r=64, lora_alpha=64, use_rslora=flag)
    assert config.scale(config.rank, config.alpha) == scale


def test_a_missing_rslora_flag_is_false():
    values = peft_config(r=64, lora_alpha=64)
    del values["use_rslora"]
    config = read_config(json.dumps(values).encode())
    assert config.scale(64, 64.0) == 1.0
    assert read(use_rslora=True).scale(8, 16.0) == pytest.approx(16 / math.sqrt(8))


# A-NEW-FIELDS
@pytest.mark.parametrize("value", [None, False, {}, [], "", 0])
def test_an_unknown_key_that_says_nothing_is_ignored(value):
    """A-NEW-FIELDS."""
    read(brand_new=value)


@pytest.mark.parametrize("value", [{"x": 1}, True, [1], "x", 2])
def test_an_unknown_key_that_says_something_fails_closed(value):
    """A-NEW-FIELDS."""
    with pytest.raises(AdapterRejected, match="brand_new is unknown"):
        read(brand_new=value)
    data = json.dumps(peft_config(brand_new=value)).encode()
    read_config(data, allowed_keys=frozenset({"brand_new"}))


def test_half_a_surrogate_pair_is_quoted_as_text():
    with pytest.raises(AdapterRejected) as caught:
        read(**{"use_\ud800": True})
    assert "use_\\ud800" in caught.value.message
    caught.value.message.encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("use_qalora", True),
        ("alora_invocation_tokens", [1, 2]),
        ("target_parameters", ["experts.gate_up_proj"]),
        ("layer_replication", [[0, 16], [8, 24]]),
        ("trainable_token_indices", [3]),
        ("arrow_config", {"top_k": 2}),
        ("use_bdlora", {"nblocks": 2}),
        ("kasa_config", {"beta": 1}),
        ("velora_config", {"x": 1}),
        ("monteclora_config", {"x": 1}),
        ("megatron_config", {"x": 1}),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"),
        ("init_lora_weights", "loftq"),
        ("init_lora_weights", "lora_ga"),
        ("init_lora_weights", {"x": 1}),
        ("peft_type", "LOHA"),
        ("peft_type", None),
        ("task_type", "SEQ_CLS"),
        ("task_type", "TOKEN_CLS"),
        ("task_type", "QUESTION_ANS"),
        ("task_type", "FEATURE_EXTRACTION"),
        ("task_type", "brand_new"),
        ("bias", "some"),
        ("bias", True),
        ("revision", 7),
    ],
)
def test_what_is_not_served_is_refused_by_name(key, value):
    """A-NEW-FIELDS and A-FAN-IN: what changes the arithmetic, or the base, or is no text."""
    with pytest.raises(AdapterRejected, match=key):
        read(**{key: value})


# A-FAN-IN
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fan_in_fan_out", True),
        ("inference_mode", False),
        ("lora_dropout", 0.5),
        ("megatron_core", "megatron.core"),
        ("task_type", "SEQ_2_SEQ_LM"),
        ("revision", "main"),
        ("loftq_config", {"loftq_bits": 4}),
        ("eva_config", {"rho": 2.0}),
        ("init_lora_weights", "gaussian"),
        ("init_lora_weights", "eva"),
        ("init_lora_weights", "orthogonal"),
        ("init_lora_weights", False),
        ("bias", None),
        ("qalora_group_size", 32),
    ],
)
def test_what_cannot_change_the_arithmetic_is_ignored(key, value):
    """A-FAN-IN."""
    assert read(**{key: value}) == read()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("r", 0),
        ("r", -1),
        ("r", 4.0),
        ("r", True),
        ("r", "4"),
        ("lora_alpha", "8"),
        ("lora_alpha", True),
        ("lora_alpha", 10**400),
        ("use_rslora", "yes"),
        ("use_rslora", 1),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", ["q_proj"]),
        ("alpha_pattern", {"q_proj": "x"}),
        ("target_modules", 5),
        ("target_modules", [5]),
        ("target_modules", [str(i) for i in range(5001)]),
        ("exclude_modules", [str(i) for i in range(5001)]),
        ("exclude_modules", {"a": 1}),
        ("layers_to_transform", ["1"]),
        ("layers_to_transform", [-1]),
        ("base_model_name_or_path", ["x"]),
        ("lora_bias", "all"),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_key(key, value):
    with pytest.raises(AdapterRejected, match=key):
        read(**{key: value})


@pytest.mark.parametrize("layers", [{"layers_to_transform": [1]}, {"layers_pattern": ["layers"]}])
def test_an_expression_takes_no_layer_list(layers):
    with pytest.raises(AdapterRejected, match="layers_to_transform"):
        read(target_modules=".*q_proj", **layers)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"r": 1, "r": 2}',
        b'{"lora_alpha": NaN}',
        b'{"lora_alpha": Infinity}',
        b"[" * 100_000,
        b" " * (MAX_CONFIG_BYTES + 1),
    ],
)
def test_what_is_no_json_object_is_rejected(data):
    with pytest.raises(AdapterRejected, match=r"adapter_config\.json"):
        read_config(data)


def test_a_number_beyond_floats_is_rejected():
    with pytest.raises(AdapterRejected, match="lora_alpha"):
        read_config(b'{"peft_type": "LORA", "lora_alpha": 1e999}')
