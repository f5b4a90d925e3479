"""PEFT itself, on a tiny model, says what each module's adapter adds."""

from __future__ import annotations

import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Embedding, LoraLayer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from engine.adapters.basecopy import BaseWeights
from engine.adapters.peft import read_config
from engine.adapters.reading import read_adapter
from engine.adapters.tensorfile import TensorFile
from engine.adapters.validate import inspect
from engine.adapters.weights import pack
from engine.model.spec import BackboneSpec

PATTERN = r".*\.layers\.1\..*(q_proj|down_proj)"
CASES = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "all linear": {"target_modules": "all-linear", "r": 3, "lora_alpha": 5},
    "rslora": {"target_modules": ["o_proj", "gate_proj"], "r": 5, "use_rslora": True},
    "patterns": {
        "target_modules": r".*_proj",
        "rank_pattern": {PATTERN: 7, "k_proj": 2},
        "alpha_pattern": {PATTERN: 28, "up_proj": 1},
        "use_rslora": True,
    },
    "layers": {"target_modules": ["q_proj"], "layers_to_transform": [1]},
    "excluded": {"target_modules": "all-linear", "exclude_modules": ["mlp.up_proj"]},
    "head": {"target_modules": ["lm_head"], "r": 2},
    "embedding": {"target_modules": ["embed_tokens"], "r": 3},
    "both and more": {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
    "lora bias": {"target_modules": ["q_proj", "down_proj"], "lora_bias": True},
}


def trained(folder, changes, tied):
    """A PEFT model whose adapter moves every output, saved to `folder`."""
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=tied,
        )
    )
    model.save_pretrained(folder / "base")
    model.config._name_or_path = "tiny/llama"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 8, **changes}))
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.5)
        peft.save_pretrained(folder / "adapter")
    return peft


def served(folder):
    """The same adapter by our own reader: (block, layout, table)."""
    spec = BackboneSpec.load(folder / "base")
    config = read_config((folder / "adapter" / "adapter_config.json").read_bytes())
    with TensorFile(folder / "adapter" / "adapter_model.safetensors") as file:
        found = inspect(config, file.tensors, spec.modules)
        base = BaseWeights(folder / "base")
        assert all(base.holds(wanted, file, name) for name, wanted in found.copies.items())
        scales = {name: shape.scale for name, shape in found.shapes.items()}
        adapter = read_adapter(file, found.modules, scales, spec.modules, lambda *_: None)
    adapter.check()
    layout = adapter.layout()
    assert layout == found.layout
    block = bytearray(layout.num_elements * 4)
    pack(adapter, layout, torch.float32, memoryview(block))
    return torch.frombuffer(block, dtype=torch.float32), layout, spec.modules


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("case", CASES)
def test_each_module_adds_what_peft_adds(tmp_path, case, tied):
    """A-TIED-HEAD, A-BIAS, A-RSLORA, A-PATTERN-SEMANTICS: as PEFT itself computes each module."""
    peft = trained(tmp_path, CASES[case], tied)
    block, layout, table = served(tmp_path)
    layers = {
        name.removeprefix("base_model.model."): layer
        for name, layer in peft.named_modules()
        if isinstance(layer, LoraLayer)
    }
    assert {table.modules[place.module].name for place in layout.blocks} == set(layers)
    for place in layout.blocks:
        module = table.modules[place.module]
        layer, rank = layers[module.name], place.rank
        size_in, size_out = module.in_features, module.out_features
        a = block[place.a : place.a + rank * size_in]
        b = block[place.b : place.b + rank * size_out].view(rank, size_out)
        if isinstance(layer, Embedding):
            x = torch.arange(size_in)
            shrunk = a.view(size_in, rank)[x]
        else:
            x = torch.randn(5, size_in)
            shrunk = x @ a.view(rank, size_in).t()
        delta = shrunk @ b
        if place.bias >= 0:
            delta = delta + block[place.bias : place.bias + size_out]
        assert place.scale == layer.scaling["default"]
        with torch.no_grad():
            wanted = layer(x) - layer.get_base_layer()(x)
        assert wanted.abs().max() > 0.1
        torch.testing.assert_close(place.scale * delta, wanted, rtol=1e-4, atol=1e-4)


def test_a_copy_of_the_base_is_told_from_a_changed_weight(tmp_path):
    """A-MODULES-TO-SAVE (a), (c), (e): tied and untied, in another dtype too."""
    for tied in (False, True):
        folder = tmp_path / str(tied)
        peft = trained(folder, {"target_modules": ["q_proj"]}, tied)
        model = peft.get_base_model()
        for name, tensor in {
            "lm_head.weight": model.lm_head.weight,
            "model.embed_tokens.weight": model.model.embed_tokens.weight,
        }.items():
            same, changed = tensor.detach().clone(), tensor.detach().clone()
            changed[-1, -1] += 1e-3
            for value, wanted in (
                (same, True),
                (same.double(), True),
                (changed, False),
                (torch.cat([same, same[:2]]), False),
                (same.to(torch.int32), False),
            ):
                path = folder / "x.safetensors"
                save_file({"x": value.contiguous()}, path)
                with TensorFile(path) as file:
                    assert BaseWeights(folder / "base").holds(name, file, "x") == wanted
                    assert not BaseWeights(folder / "base").holds("model.nothing", file, "x")
