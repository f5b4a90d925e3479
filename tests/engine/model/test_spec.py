"""What a config.json may say, and what it is refused for."""

from __future__ import annotations

import json

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from engine.errors import UnsupportedModel
from engine.model.rope_spec import RopeSpec
from engine.model.spec import BackboneSpec, read_spec

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": None}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 32}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def spec(config, generation=None, **changes):
    return read_spec({**config, **changes}, generation or {})


@pytest.mark.parametrize("config", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_what_transformers_writes_is_read(tmp_path, config):
    made = config(num_hidden_layers=2)
    made.save_pretrained(tmp_path)
    read = BackboneSpec.load(tmp_path)
    assert read.model_type == made.model_type
    assert read.head_dim == made.head_dim if hasattr(made, "head_dim") else 128
    assert read.num_kv_heads == made.num_key_value_heads
    assert read.rope == RopeSpec(10000.0)
    assert read.sliding_window == getattr(made, "sliding_window", None)
    assert read.modules.num_layers == 2


def test_switches_of_the_arithmetic_by_model_type():
    llama, mistral, qwen2, qwen3 = (spec(c) for c in (LLAMA, MISTRAL, QWEN2, QWEN3))
    assert not (llama.qkv_bias or llama.o_bias or llama.mlp_bias or llama.qk_norm)
    assert not mistral.qkv_bias
    assert qwen2.qkv_bias and not qwen2.o_bias
    assert qwen3.qk_norm and not qwen3.qkv_bias
    biased = spec(QWEN3, attention_bias=True)
    assert biased.qkv_bias and biased.o_bias
    assert spec(LLAMA, mlp_bias=True).mlp_bias


def test_sizes_that_a_model_type_derives():
    assert spec(LLAMA).head_dim == 8
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert spec(config).num_kv_heads == 8
    assert spec(LLAMA).kv_bytes_per_token(2) == 2 * 4 * 2 * 8 * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500.0},
        {"rope_theta": 500.0, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_theta": 1.0, "rope_parameters": {"rope_theta": 500.0}},
        {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default"}},
    ],
)
def test_plain_rope(fields):
    assert spec(LLAMA, **fields).rope == RopeSpec(500.0)


def test_scaled_rope_of_both_spellings():
    linear = RopeSpec(500.0, "linear", 4.0)
    old = spec(LLAMA, rope_theta=500.0, rope_scaling={"type": "linear", "factor": 4.0})
    new = spec(LLAMA, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0})
    assert old.rope == new.rope == linear
    wanted = RopeSpec(500.0, "llama3", 8.0, 1.0, 4.0, 256)
    old = spec(LLAMA, rope_theta=500.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    new = spec(LLAMA, rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3})
    assert old.rope == new.rope == wanted


def test_sliding_windows():
    assert spec(MISTRAL, sliding_window=16).sliding_layers == (0, 1, 2, 3)
    assert spec(MISTRAL).sliding_window is None
    # Qwen's window is off unless it says so, whatever its size.
    assert spec(QWEN2, sliding_window=16, max_window_layers=1).sliding_window is None
    sliding = {"use_sliding_window": True, "sliding_window": 16}
    some = spec(QWEN2, **sliding, max_window_layers=3)
    assert (some.sliding_window, some.sliding_layers) == (16, (3,))
    assert [some.window(i) for i in range(4)] == [None, None, None, 16]
    assert spec(QWEN2, **sliding, max_window_layers=4).sliding_window is None
    types = ["full_attention", "sliding_attention"] * 2
    assert spec(QWEN3, **sliding, layer_types=types).sliding_layers == (1, 3)


def test_eos_ids_of_config_and_generation_config():
    assert spec(LLAMA).eos_token_ids == ()
    assert spec(LLAMA, eos_token_id=2).eos_token_ids == (2,)
    assert spec(LLAMA, {"eos_token_id": [2, 7]}, eos_token_id=[5, 2]).eos_token_ids == (5, 2, 7)


@pytest.mark.parametrize(
    "config, changes, named",
    [
        (LLAMA, {"model_type": "gpt2"}, "model_type"),
        (LLAMA, {"model_type": None}, "model_type"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act"),
        (LLAMA, {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"hidden_size": None}, "hidden_size"),
        (LLAMA, {"vocab_size": 0}, "vocab_size"),
        (LLAMA, {"num_hidden_layers": "4"}, "num_hidden_layers"),
        (LLAMA, {"rms_norm_eps": None}, "rms_norm_eps"),
        (LLAMA, {"max_position_embeddings": True}, "max_position_embeddings"),
        (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads"),
        (LLAMA, {"head_dim": 9}, "head_dim"),
        (LLAMA, {"num_attention_heads": 6}, "head_dim"),
        (LLAMA, {"dtype": "float8_e4m3fn"}, "dtype"),
        (LLAMA, {"eos_token_id": "</s>"}, "eos_token_id"),
        (LLAMA, {"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type 'yarn'"),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        (LLAMA, {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type"),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": None}}, "rope_scaling.factor"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        (
            LLAMA,
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            "high_freq_factor",
        ),
        (LLAMA, {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters"),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (LLAMA, {"rope_theta": -1}, "rope_theta"),
        (MISTRAL, {"num_key_value_heads": None}, "num_key_value_heads"),
        (MISTRAL, {"sliding_window": 0}, "sliding_window"),
        (MISTRAL, {"sliding_window": 8, "layer_types": ["full_attention"] * 4}, "layer_types"),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 8}, "max_window_layers"),
        (QWEN2, {"layer_types": ["sliding_attention"] * 4}, "use_sliding_window"),
        (QWEN2, {"layer_types": ["full_attention"] * 3}, "layer_types"),
        (QWEN3, {"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        (QWEN3, {"head_dim": None}, "head_dim"),
    ],
)
def test_anything_else_is_refused_by_name(config, changes, named):
    with pytest.raises(UnsupportedModel, match=named.replace(".", r"\.")):
        spec(config, **changes)


def test_a_folder_without_a_sound_config(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"config\.json is missing"):
        BackboneSpec.load(tmp_path)
    for text in ("{", "[1]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UnsupportedModel, match=r"config\.json"):
            BackboneSpec.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MISTRAL | {"sliding_window": 4}))
    assert BackboneSpec.load(tmp_path).sliding_window == 4
