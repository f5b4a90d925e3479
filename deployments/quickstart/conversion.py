"""A Llama model in a GGUF file -> a Hugging Face folder, bit for bit what transformers would load.

Knows what the quickstart's file needs and refuses the rest by name: architecture `llama`, a GPT-2
style BPE with the `smollm` pre-tokenizer. Every tensor is dequantised to fp32 and rounded to bf16.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import LoraplexError

Progress = Callable[[int, int], None]
"""Called with (tensors done, tensors in all)."""

TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL, USER_DEFINED = 3, 4
"""Values of `tokenizer.ggml.token_type` whose tokens are matched whole, ahead of the BPE."""


class Metadata:
    """The key-value part of a GGUF file. `architecture` is the prefix of the model's own keys."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields
        self.architecture: str = self.require("general.architecture", "llama")

    def get(self, key: str) -> Any:
        """The value of `key`, None where the file hasn't it."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def __getitem__(self, key: str) -> Any:
        """The value of `key`. Raises LoraplexError, naming it, where the file hasn't it."""
        value = self.get(key)
        if value is None:
            raise LoraplexError(f"the GGUF file has no field {key!r}: it is not the expected model")
        return value

    def model(self, key: str) -> Any:
        return self[f"{self.architecture}.{key}"]

    def require(self, key: str, expected: str) -> str:
        """The value of `key`, which must be `expected`. Raises LoraplexError else."""
        if (value := self[key]) != expected:
            raise LoraplexError(f"GGUF field {key} is {value!r}; only {expected!r} is converted")
        return expected


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Read the GGUF file `source` and write the folder `target`, which must exist and be empty.

    Leaves `config.json`, `generation_config.json`, `model.safetensors`, `tokenizer.json` and
    `tokenizer_config.json`. Raises LoraplexError for a file of another kind.
    """
    reader = GGUFReader(source)
    metadata = Metadata(reader)
    tokenizer = build_tokenizer(metadata)
    tensors = read_tensors(reader, metadata, progress)
    config = model_config(metadata, tied="lm_head.weight" not in tensors)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", special)
    _write_json(target / "tokenizer_config.json", tokenizer_config(metadata))
    tokenizer.save(str(target / "tokenizer.json"))
    weights = target / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors writes 0600


def read_tensors(
    reader: GGUFReader, metadata: Metadata, progress: Progress
) -> dict[str, torch.Tensor]:
    """Every tensor under its Hugging Face name, bf16, rotary halves where transformers has them."""
    heads = {
        "attn_q": metadata.model("attention.head_count"),
        "attn_k": metadata.model("attention.head_count_kv"),
    }
    tensors = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        weight = dequantize(tensor.data, tensor.tensor_type)
        stem = tensor.name.split(".")[-2]
        if stem in heads:
            weight = unpermute(weight, heads[stem])
        rounded = torch.from_numpy(np.array(weight, dtype=np.float32)).to(torch.bfloat16)
        tensors[hugging_face_name(tensor.name)] = rounded
        progress(done, len(reader.tensors))
    return tensors


def unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """[out, in] with each head's rotary pairs side by side -> with them half a head apart.

    llama.cpp's converter interleaves the rows of q and k of this architecture; this is the inverse.
    """
    pairs = weight.shape[0] // heads // 2
    return weight.reshape(heads, pairs, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. LoraplexError else."""
    if name in TOP_LEVEL:
        return TOP_LEVEL[name]
    match name.split("."):
        case ["blk", layer, stem, "weight"] if stem in BLOCK:
            return f"model.layers.{layer}.{BLOCK[stem]}.weight"
    raise LoraplexError(f"GGUF tensor {name!r} has no place in a Llama model")


def model_config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """`config.json`. `tied`: the head is the embedding (the file has no `output.weight`)."""
    hidden, heads = metadata.model("embedding_length"), metadata.model("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata.model("feed_forward_length"),
        "num_hidden_layers": metadata.model("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.model("attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata.model("context_length"),
        # Stored as fp32, where 1e-05 reads 9.99999975e-06.
        "rms_norm_eps": round(metadata.model("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": float(metadata.model("rope.freq_base")),
        "rope_scaling": None,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """The BPE of `tokenizer.json`: digits one by one, then bytes as GPT-2 splits them."""
    metadata.require("tokenizer.ggml.model", "gpt2")
    metadata.require("tokenizer.ggml.pre", "smollm")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    first, second = zip(*(m.split(" ") for m in metadata["tokenizer.ggml.merges"]), strict=True)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(zip(first, second, strict=True))))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in kinds if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """`tokenizer_config.json`, the chat template in it. No token is put in front by itself."""
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.model("context_length"),
        "chat_template": metadata["tokenizer.chat_template"],
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[f"{name}_token"] = None if index is None else tokens[index]
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
