"""Full weights in an adapter's file that only repeat the base.

PEFT saves the embeddings beside a LoRA on them, unchanged. Such a copy may be dropped; to be sure
it is one, it is compared with the base value by value.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from engine.adapters.parts import DTYPES
from engine.adapters.reading import TORCH_DTYPES
from engine.adapters.tensorfile import ITEM_BYTES, TensorFile
from engine.model.checkpoint import weight_files

CHUNK_ITEMS = 1 << 22
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class BaseWeights:
    """The weights in a Hugging Face folder. A head that is not stored is the embedding's."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def biases(self) -> frozenset[str]:
        """The names of its biases."""
        found: set[str] = set()
        for path in weight_files(self._folder):
            with TensorFile(path) as file:
                found |= {name for name in file.tensors if name.endswith(".bias")}
        return frozenset(found)

    def holds(self, name: str, file: TensorFile, tensor: str) -> bool:
        """Whether the base's `name` has the very values of `tensor` in `file`."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(TensorFile(p)) for p in weight_files(self._folder)]
            for wanted in (name, EMBEDDING) if name == HEAD else (name,):
                for base in files:
                    if wanted in base.tensors:
                        return _equal(base, wanted, file, tensor)
        return False


def _equal(one: TensorFile, name: str, two: TensorFile, other: str) -> bool:
    a, b = one.tensors[name], two.tensors[other]
    if a.shape != b.shape or a.dtype not in DTYPES or b.dtype not in DTYPES:
        return False
    num_items = (a.end - a.start) // ITEM_BYTES[a.dtype]
    for start in range(0, num_items, CHUNK_ITEMS):
        count = min(CHUNK_ITEMS, num_items - start)
        left = _values(one, name, start, count)
        right = _values(two, other, start, count)
        if left.dtype != right.dtype:
            left, right = left.double(), right.double()
        if not torch.equal(left, right):
            return False
    return True


def _values(file: TensorFile, name: str, start: int, count: int) -> torch.Tensor:
    dtype = file.tensors[name].dtype
    size = ITEM_BYTES[dtype]
    data = file.read_range(name, start * size, count * size)
    return torch.frombuffer(data, dtype=TORCH_DTYPES[dtype])
