"""What a tensor of a PEFT file is, by its name alone. Standard library only.

``base_model.model.`` + module path + ``.lora_A.weight`` (also with the adapter's name, as in
``.lora_A.default.weight``). Embeddings have ``.lora_embedding_A`` and no ``.weight``. Some writers
leave the prefix out, of every tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

PREFIX = "base_model.model."
FIRST = "base_model."
LINEAR = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.(?P<leaf>weight|bias)")
EMBEDDING = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<part>[AB])(\.default)?")
WRAPPERS = re.compile(r"\.(base_layer|original_module|modules_to_save(\.default)?)(?=\.)")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one module's LoRA. `module` is its path in the Hugging Face model."""

    module: str
    which: Literal["A", "B", "bias"]
    embedding: bool


def prefixed(names: Iterable[str]) -> dict[str, str]:
    """Each tensor's name as PEFT writes it, by its name in the file. Where some tensors have the
    prefix, the others keep the names that they have, which no rule knows."""
    names = list(names)
    add = "" if any(name.startswith(FIRST) for name in names) else PREFIX
    return {name: add + name for name in names}


def lora_part(name: str) -> Part | None:
    """The part that a tensor named `name` holds; None where it is no LoRA weight of ours."""
    if not name.startswith(PREFIX):
        return None
    name = name.removeprefix(PREFIX)
    if match := EMBEDDING.fullmatch(name):
        return Part(match["module"], "A" if match["part"] == "A" else "B", True)
    match = LINEAR.fullmatch(name)
    if match is None or (match["part"], match["leaf"]) == ("A", "bias"):
        return None
    which: Literal["A", "B"] = "A" if match["part"] == "A" else "B"
    return Part(match["module"], "bias" if match["leaf"] == "bias" else which, False)


def tensor_name(module: str, which: str, *, embedding: bool) -> str:
    """The usual name of a part, for messages."""
    if embedding:
        return f"{PREFIX}{module}.lora_embedding_{which}"
    return (
        f"{PREFIX}{module}.lora_B.bias"
        if which == "bias"
        else f"{PREFIX}{module}.lora_{which}.weight"
    )


def base_name(name: str) -> str:
    """The base model's tensor that a full weight or bias in an adapter's file would replace."""
    return WRAPPERS.sub("", name.removeprefix(PREFIX))


def refusal(name: str) -> str:
    """Why a tensor that is no LoRA weight, and no copy of the base's, can't be served."""
    if ".lora_magnitude_vector" in name:
        return "it belongs to DoRA; merge the adapter into its base, or retrain without use_dora"
    if not name.startswith(PREFIX) and ".lora_" in name:
        return f"its name does not begin with {PREFIX!r}; save the adapter with PEFT"
    if ".token_adapter" in name or ".trainable_tokens" in name:
        return "trainable tokens change the vocabulary; merge the adapter, or retrain without them"
    if name.endswith(".bias"):
        return "it replaces a bias of the base; retrain with bias 'none', or merge the adapter"
    if name.endswith(".weight") and ".lora_" not in name:
        return (
            "it replaces a whole weight of the base (modules_to_save); retrain without it,"
            " or merge the adapter"
        )
    return "no rule knows it"
