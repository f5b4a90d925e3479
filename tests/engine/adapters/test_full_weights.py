"""Tensors beside A and B: copies of the base, trained biases, lora_bias, and any other."""

from __future__ import annotations

import pytest
import torch

from engine.errors import AdapterRejected
from tests.support.inspected import look
from tests.support.peft_folders import lora_tensors, module_names

P = "base_model.model."
Q0 = f"{P}model.layers.0.self_attn.q_proj"


# A-MODULES-TO-SAVE and A-BIAS: what may turn out to be a copy of the base, and what can't
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("lm_head.weight", "lm_head.weight"),
        ("lm_head.base_layer.weight", "lm_head.weight"),
        ("lm_head.modules_to_save.default.weight", "lm_head.weight"),
        ("lm_head.modules_to_save.weight", "lm_head.weight"),
        ("model.embed_tokens.original_module.weight", "model.embed_tokens.weight"),
        ("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_proj.bias"),
        ("model.layers.0.self_attn.q_proj.base_layer.bias", "model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_full_weights_are_to_be_compared_with_the_base(spec, name, wanted):
    """A-MODULES-TO-SAVE and A-BIAS."""
    tensors = {**lora_tensors(spec), P + name: torch.zeros(2)}
    assert look(spec, tensors, bias="all").copies == {P + name: wanted}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{Q0}.lora_magnitude_vector", "DoRA"),
        (f"{Q0}.lora_magnitude_vector.default.weight", "DoRA"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "base_model"),
        (f"{P}model.embed_tokens.token_adapter.trainable_tokens_delta", "vocabulary"),
        (f"{Q0}.lora_C.weight", "no rule"),
        ("optimizer.state", "no rule"),
        ("lm_head.weight", "whole weight"),
    ],
)
def test_any_other_tensor_is_an_error_with_a_remedy(spec, name, words):
    with pytest.raises(AdapterRejected, match=words):
        look(spec, {**lora_tensors(spec), name: torch.zeros(16)})


@pytest.mark.parametrize("saved", ["lm_head", "embed_tokens", "norm", "input_layernorm", "q_proj"])
def test_modules_to_save_without_their_weights_is_incomplete(spec, saved):
    """A-MODULES-TO-SAVE (d): the LoRA alone is not what was trained."""
    targets = ["v_proj"] if saved == "q_proj" else ["q_proj", "v_proj"]
    names = module_names(spec, tuple(f"self_attn.{t}" for t in targets))
    with pytest.raises(AdapterRejected, match=f"names .*{saved}.*is not in the file") as told:
        look(
            spec,
            lora_tensors(spec, names=names),
            target_modules=targets,
            modules_to_save=[saved],
        )
    assert told.value.code == "adapter_incomplete"


def test_one_of_two_modules_to_save_is_incomplete_too(spec):
    """A-MODULES-TO-SAVE (d)."""
    tensors = {**lora_tensors(spec), f"{P}lm_head.weight": torch.zeros(2)}
    both = {"modules_to_save": ["lm_head", "embed_tokens"]}
    with pytest.raises(AdapterRejected, match="embed_tokens"):
        look(spec, tensors, **both)
    tensors[f"{P}model.embed_tokens.modules_to_save.weight"] = torch.zeros(2)
    assert len(look(spec, tensors, **both).copies) == 2


def test_modules_to_save_of_another_model_is_a_warning(spec):
    """A-MODULES-TO-SAVE: PEFT passes over what the model hasn't, such as a classifier's head."""
    found = look(spec, lora_tensors(spec), modules_to_save=["classifier", "score"])
    assert found.warnings == ("modules_to_save names nothing of this base",)


def test_a_full_weight_that_zero3_left_empty_says_so(spec):
    """A-EMPTY-ZERO3 and A-MODULES-TO-SAVE: only modules_to_save is empty."""
    tensors = {**lora_tensors(spec), f"{P}lm_head.weight": torch.zeros(0)}
    with pytest.raises(AdapterRejected, match="lm_head.*empty.*ZeRO-3"):
        look(spec, tensors, modules_to_save=["lm_head"])


@pytest.mark.parametrize("value", ["all", "lora_only", "none", None])
def test_a_bias_flag_without_biases_is_fine(spec, value):
    """A-BIAS: the tensors count, not the flag."""
    assert look(spec, lora_tensors(spec), bias=value).warnings == ()


def test_lora_bias_is_applied(spec):
    """A-BIAS."""
    found = look(spec, lora_tensors(spec, bias=True), lora_bias=True)
    assert all(shape.has_bias for shape in found.shapes.values())


@pytest.mark.parametrize("flag", [True, False])
def test_lora_bias_and_its_tensors_must_agree(spec, flag):
    """A-BIAS."""
    with pytest.raises(AdapterRejected, match="lora_bias"):
        look(spec, lora_tensors(spec, bias=not flag), lora_bias=flag)
