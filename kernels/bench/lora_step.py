"""What adapters cost a decode step: its projections and what lies between them, in one graph.

Every layer has weights of its own, so that nothing stays in the L2 cache from one replay to the
next. Attention, head and sampler are left out: adapters don't touch them. `ms` is the difference of
two graphs, the step with adapters less the same step without, as the engine replays them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import triton

from kernels import table as T
from kernels.bench.graphs import COPY_BANDWIDTH, capture
from kernels.bench.shapes import ATTN_OUT, DOWN, GATE_UP, GROUPS, LAYER_MODULES, QKV, Shape
from kernels.blocks import RowBlocks
from kernels.gate import silu_gate
from kernels.lora_gpu import BoundLoraGpu, LoraGpu, Term
from kernels.norm import Squares
from kernels.residual import add_residual, squares_of
from kernels.rotary import rotate_and_store
from kernels.tuning import Tuning, rank_caps, tuning_for


@dataclass(frozen=True, slots=True)
class Weights:
    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    norm: torch.Tensor


class Adapters:
    """K adapters of the given ranks on all projections, laid out as the engine lays them out."""

    def __init__(self, shape: Shape, ranks: Sequence[int], device: str) -> None:
        features = shape.features
        self.table = T.empty_table(len(ranks), len(features))
        end = 64
        for g, rank in enumerate(ranks):
            for layer in range(shape.num_layers):
                for group in GROUPS:
                    ids = [layer * LAYER_MODULES + m for m in group]
                    for column, side in ((T.A, 0), (T.B, 1)):
                        for m in ids:
                            self.table[g, m, column] = end
                            end += -(-rank * int(features[m, side]) // 64) * 64
            self.table[g, :, T.RANK] = rank
            self.table[g, :, T.SCALE] = T.scale_bits(0.5)
        self.arena = torch.empty(end, dtype=torch.bfloat16, device=device)
        for start in range(0, end, 1 << 30):
            self.arena[start : start + (1 << 30)].normal_(std=0.02)
        self.table = self.table.to(device)


class DecodeStep:
    """Random weights and activations of a shape, for `num_rows` rows."""

    def __init__(self, shape: Shape, max_rows: int, device: str = "cuda") -> None:
        self.shape, self.device = shape, device
        self._pool = torch.randn(1 << 26, device=device, dtype=torch.bfloat16) * 0.02
        self.layers = [self._layer() for _ in range(shape.num_layers)]
        pages = -(-max_rows // shape.page_tokens) + 1
        self.cache = self._new(pages * shape.page_elements)
        self.angles = torch.rand(4096, shape.head_dim, device=device)
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.tuning = tuning_for(0)
        self.set_rows(max_rows)

    def set_rows(self, num_rows: int) -> None:
        """Activations of a step of `num_rows` rows."""
        shape = self.shape
        self.num_rows = num_rows
        self.x = self._new(num_rows, shape.hidden)
        self.r = self._new(num_rows, shape.hidden)
        self.mixed = self._new(num_rows, shape.num_heads * shape.head_dim)
        self.y_hidden = self._new(num_rows, shape.hidden)
        self.y_qkv = self._new(num_rows, shape.qkv_width)
        self.y_gate = self._new(num_rows, 2 * shape.inner)
        self.gated = self._new(num_rows, shape.inner)
        self.set_tuning(self.tuning)
        self.positions = torch.randint(0, 4096, (num_rows,), device=self.device)
        self.slots = torch.arange(num_rows, device=self.device) + shape.page_tokens

    def set_tuning(self, tuning: Tuning) -> None:
        """Tiles of the kernels from now on, and a buffer for the squares that fits them."""
        self.tuning = tuning
        self.squares = squares_of(self.x, 1e-5, tuning.residual)

    def products(self) -> None:
        """The base's matrix products alone."""
        for w in self.layers:
            torch.mm(self.x, w.qkv.t(), out=self.y_qkv)
            torch.mm(self.mixed, w.o.t(), out=self.y_hidden)
            torch.mm(self.x, w.gate_up.t(), out=self.y_gate)
            torch.mm(self.gated, w.down.t(), out=self.y_hidden)

    def terms(self, lora: BoundLoraGpu) -> None:
        """Shrink and expand alone, adding in place: what peers' kernels do."""
        lora.begin()
        for layer in range(len(self.layers)):
            first = layer * LAYER_MODULES
            for group, x, y in (
                (QKV, self.x, self.y_qkv),
                (ATTN_OUT, self.mixed, self.y_hidden),
                (GATE_UP, self.x, self.y_gate),
                (DOWN, self.gated, self.y_hidden),
            ):
                lora.add([first + m for m in group], x, y)

    def run(self, lora: BoundLoraGpu | None, beside: bool) -> None:
        """The step; lora None: without adapters. beside: shrinks run on a second stream beside
        the products."""
        if lora is not None:
            lora.begin()
        for layer, w in enumerate(self.layers):
            with self._shrunk(lora, layer, QKV, self.x, beside, self.squares) as term:
                torch.mm(self.x, w.qkv.t(), out=self.y_qkv)
            self.rotate(layer, term)
            with self._shrunk(lora, layer, ATTN_OUT, self.mixed, beside) as term:
                torch.mm(self.mixed, w.o.t(), out=self.y_hidden)
            self.add(w, term)
            with self._shrunk(lora, layer, GATE_UP, self.x, beside, self.squares) as term:
                torch.mm(self.x, w.gate_up.t(), out=self.y_gate)
            silu_gate(self.y_gate, self.gated, self.tuning.gate, self.squares, term=term)
            with self._shrunk(lora, layer, DOWN, self.gated, beside) as term:
                torch.mm(self.gated, w.down.t(), out=self.y_hidden)
            self.add(w, term)

    def rotate(self, layer: int, term: Term | None) -> None:
        rotate_and_store(
            self.y_qkv,
            self.cache,
            self.shape.heads,
            layer,
            self.angles,
            self.positions,
            self.slots,
            squares=self.squares,
            term=term,
            tile=self.tuning.rotary,
        )

    def add(self, w: Weights, term: Term | None) -> None:
        add_residual(
            self.y_hidden, self.r, w.norm, self.x, self.squares, self.tuning.residual, term
        )

    @contextmanager
    def _shrunk(
        self,
        lora: BoundLoraGpu | None,
        layer: int,
        group: tuple[int, ...],
        x: torch.Tensor,
        beside: bool,
        squares: Squares | None = None,
    ) -> Iterator[Term | None]:
        """Around the product of `group`: its term, shrunk before or beside it."""
        if lora is None:
            yield None
            return
        modules = [layer * LAYER_MODULES + m for m in group]
        main = torch.cuda.current_stream()
        if not beside:
            yield lora.shrink(modules, x, GROUPS.index(group), squares)
            return
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            term = lora.shrink(modules, x, GROUPS.index(group), squares)
        yield term
        main.wait_stream(self._side)

    def _layer(self) -> Weights:
        shape = self.shape
        return Weights(
            self._new(shape.qkv_width, shape.hidden),
            self._new(shape.hidden, shape.num_heads * shape.head_dim),
            self._new(2 * shape.inner, shape.hidden),
            self._new(shape.hidden, shape.inner),
            torch.ones(shape.hidden, dtype=torch.bfloat16, device=self.device),
        )

    def _new(self, *size: int) -> torch.Tensor:
        """Random, from a shifted pool: drawing 14 GB afresh would take longer than all else."""
        need = int(np.prod(size))
        start = int(np.random.default_rng(need).integers(0, 1 << 20)) * 8
        out = torch.empty(need, device=self.device, dtype=torch.bfloat16)
        for i in range(0, need, 1 << 25):
            end = min(i + (1 << 25), need)
            out[i:end] = self._pool[start : start + end - i]
        return out.view(size)


def floor_ms(shape: Shape, num_rows: int, ranks: Sequence[int]) -> float:
    """Adapter bytes once + x read + y read and written, in milliseconds."""
    features = shape.features
    weights = sum(ranks) * int(features.sum())
    inputs = sum(int(features[group[0], 0]) for group in GROUPS) * shape.num_layers
    outputs = int(features[:, 1].sum())
    return 2e3 * (weights + num_rows * (inputs + 2 * outputs)) / COPY_BANDWIDTH


def block_bucket(num_blocks: int) -> int:
    """Blocks of the graph that serves a batch of `num_blocks`: 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    size: int = triton.next_power_of_2(num_blocks)
    return size * 3 // 4 if size >= 4 and num_blocks <= size * 3 // 4 else size


def owners_of(num_rows: int, num_adapters: int) -> list[int]:
    """Adapters dealt round robin."""
    return [i % num_adapters for i in range(num_rows)]


@dataclass(frozen=True, slots=True)
class StepGraph:
    """A captured step, and what it uses that would else be freed."""

    graph: torch.cuda.CUDAGraph
    lora: BoundLoraGpu | None
    squares: Squares


def step_graph(
    step: DecodeStep,
    adapters: Adapters,
    owners: Sequence[int],
    *,
    block_rows: int,
    alone: bool = False,
    beside: bool = False,
    max_rank: int | None = None,
    tuning: Tuning | None = None,
) -> StepGraph:
    """The step with adapters; alone: their terms only, added in place. max_rank: of adapters that
    may be served, the present ones' own where None; of its graphs the first that serves these."""
    ids = np.array(owners)
    num_blocks = block_bucket(int(sum(-(-np.bincount(ids) // block_rows))))
    blocks = RowBlocks.of(ids, block_rows, num_blocks, step.device)
    rank = int(adapters.table[:, :, T.RANK].max())
    lora = LoraGpu(
        adapters.arena,
        adapters.table,
        step.shape.features,
        max_rows=step.num_rows,
        max_blocks=num_blocks,
        max_rank=max_rank or rank,
        tuning=tuning,
    )
    rank_cap = next(cap for cap in rank_caps(max_rank or rank) if cap >= rank)
    bound = lora.bind(blocks, rank_cap)
    step.set_tuning(bound.tuning)
    run = partial(step.terms, bound) if alone else partial(step.run, bound, beside)
    return StepGraph(capture(run), bound, step.squares)


def base_graphs(step: DecodeStep) -> list[StepGraph]:
    """[products alone, the step without adapters]"""
    step.set_tuning(tuning_for(0))
    steps = (step.products, partial(step.run, None, False))
    return [StepGraph(capture(of), None, step.squares) for of in steps]
