"""Scales of whole files as PEFT has them, and configs that must not change what is computed."""

from __future__ import annotations

import json
import math
import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import LoraLayer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from engine.adapters.digest import Manifest, ManifestModule, ManifestTensor
from engine.adapters.peft import read_config
from engine.adapters.tensorfile import TensorFile
from engine.adapters.validate import inspect
from engine.errors import AdapterRejected
from engine.model.spec import BackboneSpec
from tests.support.peft_folders import lora_tensors, module_names, peft_config, write_base

LAYERS = 12
REAL = r".*\.layers\.3\..*(q_proj|v_proj)"
VARIANTS = {
    "a real file's": ({REAL: 32}, {REAL: 128}, 0),
    "a suffix": ({"q_proj": 4}, {"q_proj": 2}, 0),
    "a layer, and not layer 11": (
        {"layers.1.self_attn.q_proj": 16},
        {"layers.1.self_attn.q_proj": 1},
        0,
    ),
    "no boundary": ({"proj": 32}, {"roj": 128}, 2),
    "misplaced": ({"^q_proj": 32}, {"^q_proj": 128}, 2),
    "with peft's prefix": ({}, {f"base_model.model.model.layers.{3}.self_attn.q_proj": 9}, 1),
    "alpha alone": ({}, {"v_proj": 64}, 0),
    "the first that matches": ({}, {"layers.2.self_attn.v_proj": 64, "v_proj": 3}, 0),
}


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    """(spec, a model of PEFT's own to adapt) with twelve layers."""
    folder = tmp_path_factory.mktemp("twelve")
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return BackboneSpec.load(folder), config


@pytest.mark.parametrize("rslora", [False, True, None])
@pytest.mark.parametrize("variant", VARIANTS)
def test_patterns_give_each_module_peft_s_rank_and_scale(twelve, tmp_path, variant, rslora):
    """A-PATTERN-SEMANTICS and A-RSLORA: scale is alpha / r or alpha / sqrt(r), module by module."""
    spec, config = twelve
    ranks, alphas, num_unused = VARIANTS[variant]
    shared = {
        "r": 8,
        "lora_alpha": 16,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": ["q_proj", "v_proj"],
    }
    model = AutoModelForCausalLM.from_config(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a pattern that matches nothing
        peft = get_peft_model(model, LoraConfig(**shared, use_rslora=bool(rslora)))
    layers = {
        name.removeprefix("base_model.model."): (layer.r["default"], layer.scaling["default"])
        for name, layer in peft.named_modules()
        if isinstance(layer, LoraLayer)
    }
    tensors = lora_tensors(spec, {name: rank for name, (rank, _) in layers.items()})
    save_file(tensors, tmp_path / "x.safetensors")
    raw = json.dumps(peft_config(**shared, use_rslora=rslora)).encode()
    with TensorFile(tmp_path / "x.safetensors") as file:
        found = inspect(read_config(raw), file.tensors, spec.modules)
    assert {n: (s.rank, s.scale) for n, s in found.shapes.items()} == layers
    assert sum("not used" in w for w in found.warnings) == num_unused


def looked(spec, tmp_path, tensors, **changes):
    save_file(tensors, tmp_path / "y.safetensors")
    config = read_config(json.dumps(peft_config(**changes)).encode())
    with TensorFile(tmp_path / "y.safetensors") as file:
        return inspect(config, file.tensors, spec.modules)


@pytest.mark.parametrize(
    "flag, scale", [(True, 64 / math.sqrt(64)), (False, 1.0), (None, 1.0), ("absent", 1.0)]
)
def test_rslora_of_a_rank_64_adapter(tmp_path, flag, scale):
    """A-RSLORA: 8 x too weak where it is forgotten."""
    spec = write_base(tmp_path)
    config = peft_config(r=64, lora_alpha=64, use_rslora=flag)
    if flag == "absent":
        del config["use_rslora"]
    save_file(lora_tensors(spec, 64, names=module_names(spec)), tmp_path / "y.safetensors")
    with TensorFile(tmp_path / "y.safetensors") as file:
        raw = json.dumps(config).encode()
        found = inspect(read_config(raw), file.tensors, spec.modules)
    assert {shape.scale for shape in found.shapes.values()} == {scale}


def digest_of(found):
    """Of what the config contributes to a version's digest."""
    modules = {n: ManifestModule(s.rank, s.scale) for n, s in found.shapes.items()}
    return Manifest(modules, {"x": ManifestTensor("F32", (1,), "0" * 64)}).digest


SQUARE = {
    "as an old PEFT wrote it": {"fan_in_fan_out": True, "inference_mode": False},
    "gaussian": {"init_lora_weights": "gaussian"},
    "shuffled": {"target_modules": ["self_attn.q_proj"]},
    "a pattern": {"target_modules": r".*\.q_proj"},
    "and others' names": {"target_modules": ["linear_fc1", "q_proj", "qkv", "attn.proj"]},
    "of another task": {"task_type": "SEQ_2_SEQ_LM"},
}


@pytest.mark.parametrize("case", SQUARE)
def test_what_is_no_arithmetic_changes_neither_weights_nor_digest(tmp_path, case):
    """A-FAN-IN and A-TARGET-FORMS: q_proj is square here, so a wrong transpose would be silent."""
    spec = write_base(tmp_path)
    names = module_names(spec, ("self_attn.q_proj",))
    tensors = lora_tensors(spec, 16, names=names)  # rank 16 of 16: A and B are square as well
    plain = {"target_modules": ["q_proj"], "r": 16}
    usual = looked(spec, tmp_path, tensors, **plain)
    found = looked(spec, tmp_path, tensors, **{**plain, **SQUARE[case]})
    assert found.modules == usual.modules and found.shapes == usual.shapes
    assert digest_of(found) == digest_of(usual) and found.warnings == ()


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "LoftQ"])
def test_an_initialisation_that_changed_the_base_is_refused(tmp_path, init):
    """A-FAN-IN: such an adapter is right on the base that training left behind, and nowhere
    else."""
    spec = write_base(tmp_path)
    with pytest.raises(AdapterRejected, match="init_lora_weights.*merge it"):
        looked(spec, tmp_path, lora_tensors(spec), init_lora_weights=init)


@pytest.mark.parametrize("flag", ["all", "lora_only", "none", None])
def test_trained_biases_are_never_passed_over(tmp_path, flag):
    """A-BIAS on a base with biases at q, k and v: each is looked at, whatever the flag says."""
    spec = write_base(
        tmp_path, architectures=["Qwen2ForCausalLM"], model_type="qwen2", head_dim=None
    )
    assert spec.qkv_bias
    name = "model.layers.0.self_attn.q_proj.bias"
    for written in (name, name.replace(".bias", ".base_layer.bias")):
        tensors = {**lora_tensors(spec), f"base_model.model.{written}": torch.zeros(16)}
        found = looked(spec, tmp_path, tensors, bias=flag)
        assert found.copies == {f"base_model.model.{written}": name}
