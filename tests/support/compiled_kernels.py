"""Compiles what passes launch, without a GPU: `python -m tests.support.compiled_kernels 90`.

Triton's compiler and ptxas need no device, and tensors on torch's meta device have all that a
launch looks at. A line of JSON for each kernel: its name, launch constants and shared memory in
bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from engine.bench.dummy import dummy_spec, dummy_weights
from engine.buckets import Buckets, PassShape, Reach
from engine.device_batch import TILE_TOKENS, tiles_of
from engine.model.cuda_backbone import CudaBackbone, Inputs, Limits
from kernels.biases import add_biases
from kernels.blocks import RowBlocks
from kernels.compiler import Target
from kernels.moves import move_pages
from kernels.paged_attention import Tiles
from kernels.sampling import sample
from kernels.token_counts import clear_rows, count_tokens

ROWS = 256
BUCKETS = Buckets(ROWS, 2048, 256)
SHAPES = (
    PassShape(ROWS, ROWS, True),
    PassShape(16, 16, True, 1, 16, Reach(256, True)),
    PassShape(ROWS, ROWS, True, 4, 128, Reach(16)),
    PassShape(ROWS, ROWS, True, 8, 34, Reach(256, True)),
    PassShape(384, ROWS, False, 16, 88, Reach(256, True)),
)


class Compiled(dict[int, dict[str, Any]]):
    """Takes the place of every kernel launch."""

    def launch(self, kernel: JITFunction[Any], *args: Any, grid: Any, **constants: Any) -> None:
        found = kernel.warmup(*args, grid=grid, **constants)
        words = {name: value for name, value in constants.items() if isinstance(value, int)}
        self[id(found)] = {
            "kernel": kernel.fn.__name__,
            "shared": found.metadata.shared,
            "of": found,
        } | words


def words(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(*size, dtype=dtype, device="meta")


def backbone() -> CudaBackbone:
    """A layer of an 8B model, for adapters of all ranks."""
    spec = replace(dummy_spec("llama-3.1-8b"), num_layers=1)
    return CudaBackbone(
        spec,
        dummy_weights(spec, torch.bfloat16, "meta"),
        words(1000, 1 << 20, dtype=torch.bfloat16),
        words(1000, len(spec.modules.modules), 6),
        Limits(16, 4096, BUCKETS.max_tokens, ROWS, BUCKETS.max_blocks, 256),
    )


def launches() -> None:
    """A pass of each shape, then what is launched around it."""
    of = backbone()
    for shape in SHAPES:
        num = shape.tokens
        blocks = RowBlocks(
            num,
            words(shape.num_blocks, shape.block_rows, dtype=torch.int32),
            words(shape.num_blocks, dtype=torch.int32),
        )
        tiles = Tiles(
            words(4, tiles_of(shape, ROWS), dtype=torch.int32), 1 if shape.decode else TILE_TOKENS
        )
        pages = words(ROWS, 256, dtype=torch.int32)
        samples = words(shape.samples)
        given = blocks if shape.has_adapters else None
        of.run(shape, Inputs(words(num), words(num), words(num), samples, tiles, pages, given))
    head = RowBlocks(ROWS, words(ROWS, 1, dtype=torch.int32), words(ROWS, dtype=torch.int32))
    of.add_head_term(of.lora.bind(head))
    vocab = of.spec.vocab_size
    counts, seen = words(ROWS, vocab, dtype=torch.int32), words(ROWS, vocab, dtype=torch.bool)
    floats = words(ROWS, 7, dtype=torch.float64)
    sample(of.logits, floats, floats[:, 0], words(ROWS), counts, seen, words(ROWS))
    add_biases(of.logits, words(8), words(8), floats[:8, 0])
    clear_rows(words(8), counts, seen)
    count_tokens(words(8), words(8), words(8), counts, seen)
    move_pages(words(1000, 1 << 20, dtype=torch.bfloat16), words(8, 3))


def compiled(capability: int) -> Iterator[dict[str, Any]]:
    """Of each kernel that `launches` launches, the words of the module."""
    driver.set_active(Target(GPUTarget("cuda", capability, 32)))
    found = Compiled()
    JITFunction.__getitem__ = lambda kernel, grid: (
        lambda *args, **constants: found.launch(kernel, *args, grid=grid, **constants)
    )
    launches()
    for each in found.values():
        yield {name: value for name, value in each.items() if name != "of"}


if __name__ == "__main__":
    for line in compiled(int(sys.argv[1])):
        print(json.dumps(line))
