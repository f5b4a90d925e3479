"""Tiny bases and PEFT folders, written by hand: every byte of them is the test's choice."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.adapters.naming import tensor_name
from engine.model.spec import BackboneSpec

BASE_NAME = "tiny/llama"
BASE_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 40,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}
QV = ("self_attn.q_proj", "self_attn.v_proj")


def write_base(folder: Path, **changes: object) -> BackboneSpec:
    """config.json and weights of a base with a tied head; answers its spec."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**BASE_CONFIG, **changes}))
    spec = BackboneSpec.load(folder)
    weights = {
        f"{m.name}.weight": torch.randn(m.out_features, m.in_features)
        for m in spec.modules.modules[:-2]
    }
    weights["model.embed_tokens.weight"] = torch.randn(spec.vocab_size, spec.hidden_size)
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.randn(spec.hidden_size)
    if not spec.tied_head:
        weights["lm_head.weight"] = torch.randn(spec.vocab_size, spec.hidden_size)
    save_file(weights, folder / "model.safetensors")
    return spec


def module_names(spec: BackboneSpec, kinds: tuple[str, ...] = QV, layers=None) -> list[str]:
    """Module paths of `kinds` in every layer, or in `layers`."""
    chosen = range(spec.num_layers) if layers is None else layers
    return [f"model.layers.{layer}.{kind}" for layer in chosen for kind in kinds]


def lora_tensors(
    spec: BackboneSpec,
    ranks: dict[str, int] | int = 4,
    *,
    names: list[str] | None = None,
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    """Random A and B by the names PEFT gives them. Default: rank 4 on q and v of all layers."""
    if isinstance(ranks, int):
        ranks = dict.fromkeys(module_names(spec) if names is None else names, ranks)
    known = spec.modules.by_name()
    tensors = {}
    for name, rank in ranks.items():
        module, embedding = known[name], name.endswith("embed_tokens")
        parts = {"A": (rank, module.in_features), "B": (module.out_features, rank)}
        if bias:
            parts["bias"] = (module.out_features,)
        for which, shape in parts.items():
            key = tensor_name(name, which, embedding=embedding)
            tensors[key] = (torch.randn(shape) * 0.5).to(dtype)
    return tensors


def peft_config(**changes: object) -> dict[str, object]:
    """adapter_config.json as PEFT writes it, all extras null; rank 4 and alpha 8 on q and v."""
    return {
        "alora_invocation_tokens": None,
        "alpha_pattern": {},
        "arrow_config": None,
        "auto_mapping": None,
        "base_model_name_or_path": BASE_NAME,
        "bias": "none",
        "corda_config": None,
        "ensure_weight_tying": False,
        "eva_config": None,
        "exclude_modules": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_alpha": 8,
        "lora_bias": False,
        "lora_dropout": 0.05,
        "megatron_config": None,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "peft_type": "LORA",
        "peft_version": "0.18.1",
        "qalora_group_size": 16,
        "r": 4,
        "rank_pattern": {},
        "revision": None,
        "target_modules": ["q_proj", "v_proj"],
        "target_parameters": None,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": None,
        "use_dora": False,
        "use_qalora": False,
        "use_rslora": False,
        **changes,
    }


def write_adapter(
    folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, object] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config or peft_config()))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
