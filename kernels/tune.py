"""`python -m kernels.tune [--rows N ...] [--out FILE]`: measures tiles on the present GPU.

Writes the file that `kernels.tuning` reads. For each kind of graph (blocks of so many rows, few or
many of them) the parts of the shrinks are chosen by the time of all kernels together, then each
kernel's tile by its own time, over all layers, with adapters of rank 16 in graphs for such ranks.
Processes compile the candidates beforehand. Takes minutes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.bench import lora_step
from kernels.bench.graphs import capture, milliseconds
from kernels.bench.shapes import ATTN_OUT, GATE_UP, GROUPS, LAYER_MODULES, QKV, SHAPES, Shape
from kernels.blocks import RowBlocks
from kernels.gate import silu_gate
from kernels.lora_gpu import BoundLoraGpu, LoraGpu, Term
from kernels.rowwise import BASE_ROWS
from kernels.tuning import TILES, Tile, Tuning, Tunings, path_of, present_tunings

MANY = 1 << 16
RANK = 16

Trials = Mapping[str, Sequence[Tuning]]


@dataclass(frozen=True, slots=True)
class Kind:
    """Graphs of up to `blocks` blocks of `block_rows` rows, and the batch that stands for them."""

    block_rows: int
    blocks: int
    rows: int
    adapters: int


KINDS = (
    Kind(0, MANY, 256, 0),
    Kind(1, 64, 32, 32),
    Kind(1, MANY, 256, 256),
    Kind(4, 16, 32, 8),
    Kind(4, MANY, 256, 64),
    Kind(8, MANY, 256, 32),
    Kind(16, 8, 32, 1),
    Kind(16, MANY, 256, 8),
)


def candidates(kind: Kind, kernel: str) -> Iterator[Tile]:
    """Tiles worth trying."""
    single = kind.block_rows == 1
    block_rows = kind.block_rows or BASE_ROWS
    if kernel == "shrink":
        for width, warps, stages in ((256, 4, 4), (256, 8, 4), (512, 8, 3)):
            yield Tile(width, warps, stages)
    elif kernel == "rotary":
        for warps in (1,) if single else (1, 2, 4):
            yield Tile(0, warps)
    elif kernel == "residual":
        # A row's 256 columns are a warp's, see `kernels.residual`.
        for warps in (1,) if single else (2, 4, 8):
            if warps <= block_rows:
                yield Tile(256, warps)
    elif single:
        for width, warps in ((256, 1), (512, 2)):
            yield Tile(width, warps)
    elif kernel == "expand":
        for width, warps in ((128, 4), (256, 4), (256, 8)):
            yield Tile(width, warps)
    else:
        for width, warps in ((64, 4), (128, 2), (128, 4), (256, 2), (256, 4), (256, 8)):
            if block_rows * width >= 16 * warps:
                yield Tile(width, warps)


class Rig:
    """The kernels of one kind of graph over the layers of a shape."""

    def __init__(self, kind: Kind, shape: Shape) -> None:
        self.kind, self.shape = kind, shape
        self.step = lora_step.DecodeStep(shape, kind.rows)
        self._blocks: RowBlocks | None = None
        if kind.adapters:
            self._adapters = lora_step.Adapters(shape, [RANK] * kind.adapters, self.step.device)
            owners = np.array(lora_step.owners_of(kind.rows, kind.adapters))
            per = -(-kind.rows // kind.adapters // kind.block_rows)
            num_blocks = lora_step.block_bucket(per * kind.adapters)
            self._blocks = RowBlocks.of(owners, kind.block_rows, num_blocks, self.step.device)

    def run(self, kernel: str, tuning: Tuning) -> Callable[[], None]:
        """All launches of one kernel in a step; "all": of all of them but the expand."""
        step = self.step
        step.set_tuning(tuning)
        squares, lora = step.squares, self._bind(tuning)
        if lora is not None:
            lora.begin()

        def launch() -> None:
            step.set_tuning(tuning)
            step.squares = squares
            for layer, weights in enumerate(step.layers):
                terms = [self._term(lora, layer, group, tuning, kernel) for group in GROUPS]
                if kernel in ("rotary", "all"):
                    step.rotate(layer, terms[0])
                if kernel in ("residual", "all"):
                    step.add(weights, terms[1])
                if kernel in ("gate", "all"):
                    silu_gate(step.y_gate, step.gated, tuning.gate, squares, term=terms[2])
                if kernel in ("residual", "all"):
                    step.add(weights, terms[3])
                if kernel == "expand" and lora is not None and terms[2] is not None:
                    lora.expand(terms[2], 2, step.y_gate)

        return launch

    def _bind(self, tuning: Tuning) -> BoundLoraGpu | None:
        if self._blocks is None:
            return None
        of = LoraGpu(
            self._adapters.arena,
            self._adapters.table,
            self.shape.features,
            max_rows=self.kind.rows,
            max_blocks=self._blocks.num_blocks,
            max_rank=RANK,
            tuning=tuning,
        )
        of.parts.normal_()
        of.factors.fill_(1.0)
        return of.bind(self._blocks)

    def _term(
        self,
        lora: BoundLoraGpu | None,
        layer: int,
        group: tuple[int, ...],
        tuning: Tuning,
        kernel: str,
    ) -> Term | None:
        """Of a group: shrunk where the shrink is measured, else whatever is in the workspace."""
        if lora is None:
            return None
        modules = [layer * LAYER_MODULES + m for m in group]
        step, workspace = self.step, GROUPS.index(group)
        squares = step.squares if group in (QKV, GATE_UP) else None
        x = {QKV: step.x, ATTN_OUT: step.mixed, GATE_UP: step.x}.get(group, step.gated)
        if kernel in ("shrink", "all"):
            return lora.shrink(modules, x, workspace, squares)
        return lora.term(modules, workspace, lora.num_parts(modules, x), squares)


def start_of(kind: Kind) -> Tuning:
    """Where the search begins."""
    if kind.block_rows != 1:
        return Tuning()
    single = Tile(256, 1)
    return Tuning(expand=Tile(512, 2), gate=single, residual=single, rotary=Tile(0, 1))


def parts_tried(kind: Kind, tuning: Tuning) -> Trials:
    """How many parts a shrink may have, judged by the time of all kernels."""
    if not kind.adapters:
        return {}
    pairs = ((2, 2), (2, 4), (4, 4), (4, 8))
    return {"all": [replace(tuning, max_parts=few, long_parts=many) for few, many in pairs]}


def tiles_tried(kind: Kind, tuning: Tuning) -> Trials:
    """Each kernel's tiles, judged by its own time."""
    kernels = TILES if kind.adapters else ("gate", "residual", "rotary")
    return {
        kernel: [replaced(tuning, {kernel: tile}) for tile in candidates(kind, kernel)]
        for kernel in kernels
    }


def replaced(tuning: Tuning, fields: Mapping[str, Any]) -> Tuning:
    return replace(tuning, **fields)


@cache
def rig(kind: Kind, shape: Shape) -> Rig:
    return Rig(kind, shape)


def compile_one(task: tuple[Kind, Shape, str, Tuning]) -> None:
    """Run it once, which leaves it in the compiler's cache on disk."""
    kind, shape, kernel, tuning = task
    rig(kind, shape).run(kernel, tuning)()
    torch.cuda.synchronize()


def tune(kinds: Sequence[Kind], shape: Shape) -> dict[Kind, Tuning]:
    found = {kind: start_of(kind) for kind in kinds}
    one_layer = replace(shape, num_layers=1)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for tried in (parts_tried, tiles_tried):
            trials = {kind: tried(kind, tuning) for kind, tuning in found.items()}
            tasks = [
                (kind, one_layer, kernel, tuning)
                for kind, of in trials.items()
                for kernel, tunings in of.items()
                for tuning in tunings
            ]
            list(pool.map(compile_one, tasks))
            for kind, of in trials.items():
                found[kind] = best(kind, shape, of, found[kind])
    return found


def best(kind: Kind, shape: Shape, trials: Trials, tuning: Tuning) -> Tuning:
    """The fastest of each kernel's trials put together."""
    # Enough layers that weights aren't found in the L2 cache, in little memory.
    shape = replace(shape, num_layers=max(8, min(shape.num_layers, 512 // max(1, kind.adapters))))
    of_kind = Rig(kind, shape)
    for kernel, tunings in trials.items():
        # What runs is kept: a graph holds addresses, not tensors.
        runs = [of_kind.run(kernel, t) for t in tunings]
        times = milliseconds([capture(run) for run in runs], 7)
        for of, ms in sorted(zip(tunings, times, strict=True), key=lambda pair: pair[1]):
            what = getattr(of, kernel, f"parts {of.max_parts}, {of.long_parts}")
            microseconds = 1e3 * ms / shape.num_layers
            print(f"{kind} {kernel} {what}: {microseconds:.2f} us a layer", flush=True)
        fastest = tunings[times.index(min(times))]
        names = ("max_parts", "long_parts") if kernel == "all" else (kernel,)
        tuning = replaced(tuning, {name: getattr(fastest, name) for name in names})
    return tuning


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description=__doc__)
    parser.add_argument("--out", type=Path, help="the file, beside the code by default")
    parser.add_argument("--rows", type=int, nargs="*", help="only graphs of so many rows")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a CUDA GPU is needed")
    chosen = [kind for kind in KINDS if kind.rows in (args.rows or [kind.rows])]
    gpu = torch.cuda.get_device_properties()
    path = args.out or path_of(gpu.name)
    found = dict(present_tunings().of)
    for kind, tuning in tune(chosen, SHAPES["llama-3.1-8b"]).items():
        num_sms = gpu.multi_processor_count
        found[kind.block_rows, kind.blocks] = replace(tuning, num_sms=num_sms)
    path.parent.mkdir(exist_ok=True)
    Tunings(gpu.name, found).write(path)


if __name__ == "__main__":
    main()
