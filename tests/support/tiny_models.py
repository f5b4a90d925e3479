"""Tiny random bases and adapters made by transformers and PEFT, and what those say of them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from engine.adapters.peft import read_config
from engine.adapters.reading import read_adapter
from engine.adapters.tensorfile import TensorFile
from engine.adapters.validate import inspect
from engine.adapters.weights import Adapter
from engine.model.spec import BackboneSpec

# Of a logit, in standard deviations of the oracle's.
TOLERANCE = 1e-4
SIZES = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama-biased": LlamaConfig(
        **SIZES, rope_parameters=LINEAR, attention_bias=True, mlp_bias=True, head_dim=24
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=11),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-sliding": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, attention_bias=True),
}
ADAPTERS = {
    "r4": {"r": 4, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 8},
    "r8": {
        "r": 8,
        "target_modules": ["o_proj", "up_proj", "down_proj", "lm_head"],
        "lora_alpha": 8,
        "rank_pattern": {"layers.1.mlp.up_proj": 3},
        "layers_to_transform": None,
    },
    "r64": {
        "r": 64,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": [
            *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
            *("embed_tokens", "lm_head"),
        ],
    },
}


@dataclass
class TinyModel:
    """A base and its adapters, as oracles: `oracles[None]` is the base, others by adapter name."""

    folder: Path
    spec: BackboneSpec
    oracles: dict[str | None, PreTrainedModel]
    adapters: dict[str, Adapter]

    def logits(self, adapter: str | None, tokens: list[int]) -> torch.Tensor:
        """[T, V]: the oracle's, one sequence alone."""
        with torch.no_grad():
            return self.oracles[adapter](torch.tensor([tokens])).logits[0]

    def check(
        self, adapter: str | None, prompt: list[int], tokens: list[int], logits: torch.Tensor
    ) -> None:
        """Assert that `tokens` are the oracle's greedy answer, and that the `logits` [n, V] they
        were drawn from are its own; where there is an adapter, that it moves them by far more.

        One pass over prompt and answer tells: an answer is greedy if each token is the best after
        those before it.
        """
        wanted = self.logits(adapter, prompt + tokens[:-1])[len(prompt) - 1 :]
        assert tokens == wanted.argmax(-1).tolist()
        allowed = TOLERANCE * wanted.std()
        assert (logits - wanted).abs().max() <= allowed
        if adapter is not None:
            base = self.logits(None, prompt + tokens[:-1])[len(prompt) - 1 :]
            assert (base - wanted).abs().max() >= 100 * allowed


def make_model(folder: Path, name: str, adapters: tuple[str, ...] = ()) -> TinyModel:
    """Make and save the base `name` and its adapters below `folder`, from a fixed seed."""
    torch.manual_seed(hash_of(name))
    return build_model(folder, CONFIGS[name], {a: ADAPTERS[a] for a in adapters})


def build_model(
    folder: Path, config: PreTrainedConfig, adapters: Mapping[str, dict[str, object]]
) -> TinyModel:
    """The same of any configs, from the random numbers that come next."""
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter_name, parameter in model.named_parameters():
        # transformers starts these at 0 and 1, where a mistake would not show.
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        if "norm" in parameter_name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    base = folder / "base"
    model.save_pretrained(base)
    made = TinyModel(base, BackboneSpec.load(base), {None: model}, {})
    for adapter, lora in adapters.items():
        oracle = make_adapter(model, folder / adapter, lora)
        made.oracles[adapter] = oracle
        made.adapters[adapter] = load_adapter(folder / adapter, made.spec)
    return made


def make_adapter(base: PreTrainedModel, folder: Path, config: dict[str, object]) -> PreTrainedModel:
    """A PEFT model over a copy of `base` whose A and B are random; saved to `folder`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = get_peft_model(copy.deepcopy(base), LoraConfig(**config)).eval()
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        peft.save_pretrained(folder, save_embedding_layers=False)
    return peft


def load_adapter(folder: Path, spec: BackboneSpec) -> Adapter:
    """An adapter folder by our own reader."""
    config = read_config((folder / "adapter_config.json").read_bytes())
    with TensorFile(folder / "adapter_model.safetensors") as file:
        found = inspect(config, file.tensors, spec.modules)
        scales = {name: shape.scale for name, shape in found.shapes.items()}
        return read_adapter(file, found.modules, scales, spec.modules, lambda *_: None)


def hash_of(name: str) -> int:
    """A seed of its own for each name; Python's hash differs between runs."""
    return sum(ord(letter) * 31**i for i, letter in enumerate(name)) % 2**31
