"""Every tensor of a checkpoint is used, ignored by name, or an error."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedModel
from engine.model.spec import BackboneSpec
from engine.model.weights import load_weights
from tests.support.tiny_models import make_model


@pytest.fixture(params=["llama", "llama-biased", "qwen3"])
def folder(request, tmp_path):
    return make_model(tmp_path, request.param).folder


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def load(folder, dtype=torch.float32):
    return load_weights(folder, BackboneSpec.load(folder), dtype)


def test_matrices_that_share_an_input_are_one(folder):
    tensors = load_file(folder / "model.safetensors")
    weights, spec = load(folder), BackboneSpec.load(folder)
    layer = weights.layers[1]
    assert len(weights.layers) == 3
    names = [f"model.layers.1.self_attn.{x}_proj.weight" for x in "qkv"]
    assert torch.equal(layer.qkv, torch.cat([tensors[name] for name in names]))
    assert (layer.qkv_bias is None) == (not spec.qkv_bias)
    assert (layer.qk_norm is None) == (not spec.qk_norm)
    assert (weights.head is weights.embed) == spec.tied_head
    assert load(folder, torch.bfloat16).layers[0].down.dtype == torch.bfloat16


def test_sharded_files_give_the_same(folder):
    tensors = load_file(folder / "model.safetensors")
    whole = load(folder)
    (folder / "model.safetensors").unlink()
    files = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({n: t for n, t in tensors.items() if files[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert torch.equal(load(folder).layers[2].gate_up, whole.layers[2].gate_up)


NORM = "model.layers.0.input_layernorm.weight"
DAMAGE = {
    "missing": (lambda t: t.pop(NORM), f"{NORM} is missing"),
    "unexpected": (lambda t: t.update({"model.extra.weight": torch.ones(2)}), "model.extra"),
    "shape": (lambda t: t.update({NORM: torch.ones(65)}), r"shape \[65\].*\[64\]"),
    "dtype": (lambda t: t.update({NORM: torch.ones(64, dtype=torch.int8)}), "int8"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(folder, damage):
    change, message = DAMAGE[damage]
    rewrite(folder, change)
    with pytest.raises(UnsupportedModel, match=message):
        load(folder)


def test_tensors_ignored_by_rule(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    load(folder)


def test_a_stored_head_of_a_tied_model_must_be_the_embedding(tmp_path):
    folder = make_model(tmp_path, "llama").folder
    embed = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": embed.clone()}))
    weights = load(folder)
    assert weights.head is weights.embed
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": embed + 1}))
    with pytest.raises(UnsupportedModel, match="tied"):
        load(folder)


def test_no_weights_that_we_read(tmp_path):
    folder = make_model(tmp_path, "llama").folder
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="must be safetensors"):
        load(folder)
