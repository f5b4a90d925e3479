"""What a backbone is, read from a Hugging Face folder's config.json before any weight is.

Served: Llama 2 and 3 ("llama"), Mistral, Qwen2, Qwen3. Whatever would change the arithmetic and is
not known here is an error that names the field, never a default. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModel
from engine.model.modules import ModuleTable, module_table
from engine.model.rope_spec import RopeSpec, read_rope

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class BackboneSpec:
    """The shape of a backbone and the switches of its arithmetic.

    sliding_window  tokens that a position sees, itself included, in `sliding_layers`; None: all
    sliding_layers  ids of the layers that the window holds for
    qkv_bias        q, k and v projections have a bias; o_bias and mlp_bias likewise
    qk_norm         q and k are RMS-normalised per head before rope
    tied_head       lm_head uses the embedding's weights
    eos_token_ids   from config.json and generation_config.json together
    dtype           of the stored weights
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeSpec
    max_position: int
    sliding_window: int | None
    sliding_layers: tuple[int, ...]
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_head: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str

    @classmethod
    def load(cls, folder: str | Path) -> BackboneSpec:
        """Read `folder`. Raises UnsupportedModel naming the field that can't be served."""
        config = _read_json(Path(folder) / "config.json")
        generation = Path(folder) / "generation_config.json"
        return read_spec(config, _read_json(generation) if generation.exists() else {})

    @property
    def modules(self) -> ModuleTable:
        return module_table(
            num_layers=self.num_layers,
            hidden=self.hidden_size,
            intermediate=self.intermediate_size,
            q_out=self.num_heads * self.head_dim,
            kv_out=self.num_kv_heads * self.head_dim,
            vocab=self.vocab_size,
        )

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of one token's keys and values in all layers; `itemsize` of the serving dtype."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize

    def window(self, layer: int) -> int | None:
        """Tokens that a position of `layer` sees, itself included; None: all before it."""
        return self.sliding_window if layer in self.sliding_layers else None


def read_spec(config: Mapping[str, Any], generation: Mapping[str, Any]) -> BackboneSpec:
    """The spec of a config.json and a generation_config.json already parsed."""
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise UnsupportedModel(
            f"config.json: model_type {model_type!r} is not one of {', '.join(MODEL_TYPES)}"
        )
    _refuse_unknown_arithmetic(config)
    num_heads, num_kv_heads, head_dim = _heads(config)
    num_layers = _count(config, "num_hidden_layers")
    window, layers = _sliding(config, num_layers)
    attention_bias = bool(config.get("attention_bias", False))
    return BackboneSpec(
        model_type=model_type,
        hidden_size=_count(config, "hidden_size"),
        intermediate_size=_count(config, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=_count(config, "vocab_size"),
        rms_norm_eps=_positive(config, "rms_norm_eps"),
        rope=read_rope(config),
        max_position=_count(config, "max_position_embeddings"),
        sliding_window=window,
        sliding_layers=layers,
        qkv_bias=model_type == "qwen2" or (model_type in ("llama", "qwen3") and attention_bias),
        o_bias=model_type in ("llama", "qwen3") and attention_bias,
        mlp_bias=model_type == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=model_type == "qwen3",
        tied_head=bool(config.get("tie_word_embeddings", False)),
        bos_token_id=config.get("bos_token_id"),
        eos_token_ids=_eos(config, generation),
        dtype=_dtype(config),
    )


def _refuse_unknown_arithmetic(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"config.json: hidden_act {config['hidden_act']!r} is not 'silu'")
    if config.get("quantization_config") is not None:
        raise UnsupportedModel(
            "config.json: quantization_config: quantised weights are not supported; "
            "use the float16, bfloat16 or float32 checkpoint"
        )
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("config.json: partial_rotary_factor other than 1 is not supported")


def _heads(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """(query heads, KV heads, head dimension). What a model type derives, it derives here."""
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    if config.get("num_key_value_heads") is None and config["model_type"] == "llama":
        kv_heads = heads
    else:
        kv_heads = _count(config, "num_key_value_heads")
    if heads % kv_heads:
        raise UnsupportedModel(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if config.get("head_dim") is not None or config["model_type"] == "qwen3":
        head_dim = _count(config, "head_dim")
    elif hidden % heads:
        raise UnsupportedModel(
            f"config.json: head_dim is missing and hidden_size {hidden} is not a multiple of "
            f"num_attention_heads {heads}"
        )
    else:
        head_dim = hidden // heads
    if head_dim % 2:
        raise UnsupportedModel(f"config.json: head_dim {head_dim} is odd: rope needs pairs")
    return heads, kv_heads, head_dim


def _sliding(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    """(window, the layers it holds for)."""
    types = config.get("layer_types")
    if config["model_type"] == "llama":
        window = None
    elif config["model_type"] == "mistral":
        if "sliding_window" not in config:
            raise UnsupportedModel("config.json: sliding_window is missing (null turns it off)")
        window = config["sliding_window"]
        every = ["full_attention" if window is None else "sliding_attention"] * num_layers
        if types not in (None, every):
            raise UnsupportedModel("config.json: layer_types differ from sliding_window (mistral)")
        types = every
    else:
        window = config.get("sliding_window") if config.get("use_sliding_window", False) else None
        if types is None and window is not None:
            first = _count(config, "max_window_layers", least=0)
            types = [
                "sliding_attention" if i >= first else "full_attention" for i in range(num_layers)
            ]
    return _window_layers(window, types or [], num_layers)


def _window_layers(
    window: Any, types: list[str], num_layers: int
) -> tuple[int | None, tuple[int, ...]]:
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown or (types and len(types) != num_layers):
        raise UnsupportedModel(
            f"config.json: layer_types must name full_attention or sliding_attention for each of "
            f"{num_layers} layers, not {sorted(unknown) or len(types)}"
        )
    layers = tuple(i for i, kind in enumerate(types) if kind == "sliding_attention")
    if not layers:
        return None, ()
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise UnsupportedModel(
            f"config.json: sliding_window {window!r} is not a positive integer, but layer_types "
            f"or use_sliding_window ask for one"
        )
    return window, layers


def _eos(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for source in (config, generation):
        value = source.get("eos_token_id")
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(v, int) for v in values):
            raise UnsupportedModel(f"eos_token_id {value!r} is neither an integer nor a list")
        ids += [v for v in values if v not in ids]
    return tuple(ids)


def _dtype(config: Mapping[str, Any]) -> str:
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    if name not in DTYPES:
        raise UnsupportedModel(f"config.json: dtype {name!r} is not one of {', '.join(DTYPES)}")
    return str(name)


def _count(config: Mapping[str, Any], name: str, least: int = 1) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        found = "missing" if value is None else repr(value)
        raise UnsupportedModel(f"config.json: {name} must be an integer >= {least}; it is {found}")
    return value


def _positive(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        found = "missing" if value is None else repr(value)
        raise UnsupportedModel(f"config.json: {name} must be a positive number; it is {found}")
    return float(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedModel(f"{path.name} is missing from the model folder") from None
    except ValueError as error:
        raise UnsupportedModel(f"{path.name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{path.name} is not a JSON object")
    return value
