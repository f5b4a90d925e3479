"""adapter_config.json of a PEFT LoRA, read so that nothing in it is ever overlooked.

Every key is used, ignored because it can't change what an adapter computes, refused with a remedy,
or unknown. An unknown key with a value that could mean something fails closed. Standard library
only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.adapters.tensorfile import unique_keys
from engine.errors import AdapterRejected

MAX_CONFIG_BYTES = 4 << 20
MAX_NAMES = 5000
"""In one list: every one is tried on every module."""
MERGE = "Merge the adapter into its base, or retrain without it."

# Neither of these changes what a trained adapter computes on Linear layers and embeddings.
IGNORED = frozenset(
    {
        "auto_mapping",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "runtime_config",
    }
)
REFUSED: Mapping[str, str] = {
    "alora_invocation_tokens": "activated LoRA switches itself on in mid-prompt",
    "arrow_config": "Arrow routes between adapters",
    "kasa_config": "KaSA has other weights than A and B",
    "layer_replication": "it repeats layers that the shared base has once",
    "megatron_config": "Megatron's parallel layers are not served",
    "monteclora_config": "MonteCLoRA has other weights than A and B",
    "target_parameters": "it adapts parameters that are no linear layer",
    "trainable_token_indices": "it replaces rows of the embedding",
    "use_bdlora": "block-diagonal LoRA has other shapes",
    "use_dora": "DoRA rescales the base's weights",
    "use_qalora": "QA-LoRA pools its input",
    "velora_config": "VeLoRA is not served",
}
BIASES = ("none", "all", "lora_only")
TASKS = ("CAUSAL_LM", "SEQ_2_SEQ_LM")
"""The second is written in earnest by trainers of models like ours."""
UNPINNED = "main"
"""A revision that names a branch's newest: as good as none."""
# These start from A and B alone and leave the base as it is.
PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica")
USED = frozenset(
    {
        "alpha_pattern",
        "base_model_name_or_path",
        "bias",
        "ensure_weight_tying",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_bias",
        "modules_to_save",
        "peft_type",
        "r",
        "rank_pattern",
        "revision",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What of a config matters. A None of the file is an absent key.

    targets  module names, one regular expression or "all-linear"; None: not said
    exclude  likewise, of modules left out
    layers   the only layers adapted; None: all. `layers_pattern` finds a module's layer number
    bias     which biases of the base were trained: none, all, lora_only (of adapted modules)
    revision  of the base; "": not said
    """

    base: str
    revision: str
    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: tuple[tuple[str, int], ...]
    alpha_pattern: tuple[tuple[str, float], ...]
    targets: tuple[str, ...] | str | None
    exclude: tuple[str, ...] | str
    layers: frozenset[int] | None
    layers_pattern: tuple[str, ...]
    modules_to_save: tuple[str, ...]
    bias: str
    lora_bias: bool
    ensure_weight_tying: bool

    def scale(self, rank: int, alpha: float) -> float:
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def read_config(data: bytes, *, allowed_keys: frozenset[str] = frozenset()) -> PeftConfig:
    """Read adapter_config.json. `allowed_keys` are unknown keys that the operator vouches for.

    Raises AdapterRejected, which names the key.
    """
    raw = _parse(data)
    if str(raw.get("peft_type")).upper() != "LORA":
        raise _reject("peft_type", f"is {raw.get('peft_type')!r}. Only LORA adapters are served.")
    for key, value in raw.items():
        _check_key(key, value, allowed_keys)
    _check_init(raw.get("init_lora_weights"))
    _check_task(_text(raw, "task_type"))
    revision = _text(raw, "revision")
    layers, targets = raw.get("layers_to_transform"), _modules(raw, "target_modules")
    if isinstance(targets, str) and (layers is not None or raw.get("layers_pattern")):
        raise _reject("layers_to_transform", "needs target_modules to be a list.")
    rank = raw.get("r", 8)
    return PeftConfig(
        base=_text(raw, "base_model_name_or_path"),
        revision="" if revision == UNPINNED else revision,
        rank=_count("r", rank),
        alpha=_number("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=_flag(raw, "use_rslora"),
        rank_pattern=tuple((k, _count("rank_pattern", v)) for k, v in _map(raw, "rank_pattern")),
        alpha_pattern=tuple(
            (k, _number("alpha_pattern", v)) for k, v in _map(raw, "alpha_pattern")
        ),
        targets=targets,
        exclude=_modules(raw, "exclude_modules") or (),
        layers=_layers(layers),
        layers_pattern=_strings(raw, "layers_pattern"),
        modules_to_save=_strings(raw, "modules_to_save"),
        bias=_bias(_text(raw, "bias")),
        lora_bias=_flag(raw, "lora_bias"),
        ensure_weight_tying=_flag(raw, "ensure_weight_tying"),
    )


def _parse(data: bytes) -> dict[str, Any]:
    def constant(text: str) -> float:
        raise ValueError(f"{text} is no number")

    if len(data) > MAX_CONFIG_BYTES:
        raise AdapterRejected(f"adapter_config.json has {len(data)} bytes: more than any real one.")
    try:
        raw = json.loads(
            data.decode("utf-8"), object_pairs_hook=unique_keys, parse_constant=constant
        )
    except (ValueError, RecursionError) as error:
        raise AdapterRejected(f"adapter_config.json is not JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise AdapterRejected("adapter_config.json is not a JSON object.")
    return {key: value for key, value in raw.items() if value is not None}


def _check_key(key: str, value: Any, allowed: frozenset[str]) -> None:
    if key in USED or key in IGNORED or value in (False, {}, [], ""):
        return
    if key in REFUSED:
        raise _reject(key, f"is set: {REFUSED[key]}. {MERGE}")
    if key not in allowed:
        raise _reject(
            key, "is unknown and may change the arithmetic. Ask the operator to allow it if not."
        )


def _check_init(init: Any) -> None:
    """Some initialisations change the base while training: B A alone is then half the change."""
    if init is None or isinstance(init, bool) or init in PLAIN_INITS:
        return
    raise _reject(
        "init_lora_weights",
        f"is {str(init)[:40]!r}, which may change the base while training. Save the adapter again"
        " with PEFT's path_initial_model_for_weight_conversion, or merge it into its base.",
    )


def _check_task(task: str) -> None:
    """Other tasks end in a head that no LoRA holds: the base's own would answer in its place."""
    if task and task not in TASKS:
        raise _reject(
            "task_type",
            f"is {task[:40]!r}, but only CAUSAL_LM is served: adapters that write text. Train it as"
            " CAUSAL_LM; if it was, mend the config.",
        )


def _bias(bias: str) -> str:
    if bias and bias not in BIASES:
        raise _reject("bias", f"is {bias[:40]!r}, not one of {', '.join(BIASES)}. Mend the config.")
    return bias or "none"


def _layers(value: Any) -> frozenset[int] | None:
    if value is None or value == []:
        return None
    values = value if isinstance(value, list) else [value]
    if any(type(v) is not int or v < 0 for v in values):
        raise _reject("layers_to_transform", "must be layer numbers.")
    return frozenset(values)


def _modules(raw: Mapping[str, Any], key: str) -> tuple[str, ...] | str | None:
    """A list of names, or a string: a regular expression."""
    value = raw.get(key)
    if value is None or isinstance(value, str):
        return value
    return _strings(raw, key)


def _strings(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key, [])
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(v, str) for v in values):
        raise _reject(key, "must be names.")
    if len(values) > MAX_NAMES:
        raise _reject(key, f"has {len(values)} names, more than {MAX_NAMES}.")
    return tuple(sorted(set(values))) if key == "target_modules" else tuple(values)


def _map(raw: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise _reject(key, "must be an object of patterns.")
    return list(value.items())


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key, False)
    if not isinstance(value, bool):
        raise _reject(key, f"must be true or false, not {str(value)[:40]!r}.")
    return value


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key, "")
    if not isinstance(value, str):
        raise _reject(key, "must be a string.")
    return value


def _count(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise _reject(key, f"must be a whole number above 0, not {str(value)[:40]!r}.")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _reject(key, f"must be a number, not {str(value)[:40]!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _reject(key, "is too large.")
    return number


def _reject(key: str, what: str) -> AdapterRejected:
    return AdapterRejected(f"adapter_config.json: {key[:80]} {what}", param=key[:80])
