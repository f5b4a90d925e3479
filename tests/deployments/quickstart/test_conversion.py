"""The converted folder against transformers' own reading of the same GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from deployments.quickstart.conversion import convert, hugging_face_name, unpermute
from engine.errors import LoraplexError

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 4, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh01234Ġ", "ab", "abc", "12"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

Write = Callable[..., Path]


def _ignore(done: int, total: int) -> None:
    pass


def _tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    head = HIDDEN // HEADS
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * head, HIDDEN),
            "attn_v": (KV_HEADS * head, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (FFN, HIDDEN),
            "ffn_up": (FFN, HIDDEN),
            "ffn_down": (HIDDEN, FFN),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return {n: rng.normal(scale=0.2, size=s).astype(np.float32) for n, s in shapes.items()}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a tiny model; matrices are stored in 4 bits, as the quickstart's are."""

    def to(architecture: str = "llama", pre: str = "smollm", missing: str = "") -> Path:
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_context_length(128)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(len(TOKENS))
        if missing != "rope.freq_base":
            writer.add_rope_freq_base(10000.0)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(TOKENS)
        writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
        writer.add_token_merges(["a b", "ab c", "1 2"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_chat_template(TEMPLATE)
        for name, tensor in _tensors(np.random.default_rng(0)).items():
            if tensor.ndim == 1:
                writer.add_tensor(name, tensor)
                continue
            kind = gguf.GGMLQuantizationType.Q4_1
            packed = gguf.quantize(tensor, kind)
            writer.add_tensor(name, packed, raw_shape=packed.shape, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return to


def test_weights_are_those_that_transformers_loads(write: Write, tmp_path: Path) -> None:
    source, target = write(), tmp_path / "model"
    target.mkdir()
    seen: list[tuple[int, int]] = []
    convert(source, target, lambda done, total: seen.append((done, total)))
    ours = load_file(target / "model.safetensors")
    oracle = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    theirs = {n: t for n, t in oracle.state_dict().items() if n != "lm_head.weight"}
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor.to(torch.bfloat16)), name
    assert seen[-1] == (len(ours), len(ours))
    config = AutoModelForCausalLM.from_pretrained(target).config
    for field in ("hidden_size", "num_key_value_heads", "head_dim", "vocab_size"):
        assert getattr(config, field) == getattr(oracle.config, field), field
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings
    assert (config.bos_token_id, config.eos_token_id) == (1, 2)


def test_tokenizer_splits_digits_and_keeps_special_tokens_whole(
    write: Write, tmp_path: Path
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    convert(write(), target, _ignore)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer.tokenize("<|im_start|>abc 12<|im_end|>") == [
        *("<|im_start|>", "abc", "Ġ", "1", "2", "<|im_end|>")
    ]
    assert tokenizer.decode(tokenizer.encode("abc 12")) == "abc 12"
    messages = [{"role": "user", "content": "abc"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "abc"
    assert (target / "model.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architecture": "qwen2"}, "general.architecture"),
        ({"pre": "qwen2"}, "tokenizer.ggml.pre"),
        ({"missing": "rope.freq_base"}, "llama.rope.freq_base"),
    ],
    ids=str,
)
def test_another_kind_of_file_is_refused_by_name(
    write: Write, tmp_path: Path, change: dict[str, str], named: str
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    with pytest.raises(LoraplexError, match=named):
        convert(write(**change), target, _ignore)


def test_a_tensor_without_a_place_is_refused() -> None:
    assert hugging_face_name("blk.7.ffn_up.weight") == "model.layers.7.mlp.up_proj.weight"
    with pytest.raises(LoraplexError, match=r"blk\.0\.attn_q\.bias"):
        hugging_face_name("blk.0.attn_q.bias")


def test_unpermute_is_the_inverse_of_interleaving() -> None:
    heads, width = 3, 8
    rows = np.arange(heads * width, dtype=np.float32)[:, None].repeat(2, axis=1)
    halves = rows.reshape(heads, 2, width // 2, 2)
    interleaved = halves.swapaxes(1, 2).reshape(rows.shape)
    assert not np.array_equal(interleaved, rows)
    assert np.array_equal(unpermute(interleaved, heads), rows)
