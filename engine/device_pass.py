"""A model on a device: the arena, and how a plan becomes work enqueued on the current stream.

Nothing here waits, and nothing reads the device: which graph, which rows, which tokens is known on
the host. Works on any device that Triton runs on, its interpreter included; streams, events and
graphs are the runner's (`engine.cuda_runner`).
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine.buckets import Buckets, PassShape
from engine.config import EngineConfig
from engine.device_batch import TILE_TOKENS, BatchFiller, Filled, parts, tiles_of
from engine.device_moves import DeviceMoves
from engine.device_sampler import BEST_TOKEN, DeviceSampler
from engine.device_table import DeviceTable
from engine.model.cuda_backbone import CudaBackbone, Inputs, Limits
from engine.model.spec import BackboneSpec
from engine.model.weights import Weights
from engine.plan import StepPlan
from engine.reaches import Reaches
from engine.step_buffer import StepBuffer
from kernels.blocks import RowBlocks
from kernels.paged_attention import Tiles


class Replay(Protocol):
    """How the parts of a step that depend on its shape alone are enqueued."""

    def forward(self, shape: PassShape) -> None: ...

    def add_head_term(self, num: int) -> None: ...

    def choose(self, num: int) -> None: ...


def limits(config: EngineConfig, buckets: Buckets) -> Limits:
    """Of a backbone whose passes have these shapes; lm_head's term has a block for each sample."""
    return Limits(
        page_tokens=config.memory.page_tokens,
        num_positions=config.model.max_model_len,
        max_tokens=buckets.max_tokens,
        max_samples=buckets.max_seqs,
        max_blocks=max(buckets.max_blocks, buckets.max_seqs),
        max_rank=buckets.max_rank,
    )


class DevicePass:
    """arena [pages, elements]: an adapter takes at least one page, so the table has a place for
    each. num_slots: see StepBuffer."""

    def __init__(
        self,
        config: EngineConfig,
        spec: BackboneSpec,
        weights: Weights,
        arena: torch.Tensor,
        num_slots: int,
    ) -> None:
        memory, schedule = config.memory, config.schedule
        num_pages, elements = arena.shape
        device = arena.device
        self.arena = arena
        self.buckets = Buckets(
            schedule.max_seqs, schedule.max_step_tokens, config.adapters.max_rank
        )
        self._table = DeviceTable(num_pages, len(spec.modules.modules), elements, num_slots, device)
        self._reaches = Reaches(num_pages, spec.modules)
        self.backbone = CudaBackbone(
            spec,
            weights,
            self.arena,
            self._table.tensor,
            limits(config, self.buckets),
        )
        max_pages = -(-config.model.max_model_len // memory.page_tokens)
        self._buffer = StepBuffer(parts(self.buckets, max_pages), num_slots, device)
        self._filler = BatchFiller(self.buckets, memory.page_tokens, max_pages, self._reaches)
        self.sampler = DeviceSampler(
            schedule.max_seqs, spec.vocab_size, config.model.max_model_len, num_slots, device
        )
        most = max(num_pages, memory.max_move_bytes // (elements * arena.element_size()))
        self._moves = DeviceMoves(most, num_slots, device)
        self._tokens = torch.zeros_like(self._buffer.device["tokens"])
        self._clear_inputs()
        self._prepare()

    def fill(self, plan: StepPlan, slot: int) -> Filled | None:
        """Write the plan into a slot of the step buffer; None where it has no pass."""
        self._reaches.note(plan.entries)
        return self._filler.fill(plan, self._buffer.host(slot)) if plan.spans else None

    def enqueue(self, plan: StepPlan, filled: Filled | None, slot: int, replay: Replay) -> None:
        """Moves, table entries, then the pass and its tokens, into `sampler.result`."""
        if plan.moves:
            self._moves.enqueue(self.arena, plan.moves, slot)
        self._table.set(plan.entries, slot)
        if filled is None:
            return
        self.sampler.begin(plan, filled.sampled, self._buffer.host(slot), slot)
        self._buffer.upload(slot, filled.num_rows)
        replay.forward(filled.shape)
        if self._reaches.any_on_head(span.adapter for span in filled.sampled):
            replay.add_head_term(filled.shape.samples)
        self.sampler.add_biases(self.backbone.logits)
        replay.choose(filled.shape.samples)

    def forward(self, shape: PassShape) -> None:
        """Enqueue the layers and the head on what the step buffer holds."""
        device, num = self._buffer.device, shape.tokens
        rows, tokens = device["token_rows"][:num], self._tokens[:num]
        last = self.sampler.last[rows.clamp(min=0)]
        torch.where(rows < 0, device["tokens"][:num], last, out=tokens)
        width = tiles_of(shape, self.buckets.max_seqs)
        tiles = device["tiles"][: 4 * width].view(4, width)
        inputs = Inputs(
            tokens=tokens,
            positions=device["positions"][:num],
            slots=device["slots"][:num],
            samples=device["samples"][: shape.samples],
            tiles=Tiles(tiles, 1 if shape.decode else TILE_TOKENS),
            pages=device["pages"],
            blocks=self._blocks(shape) if shape.has_adapters else None,
        )
        self.backbone.run(shape, inputs)

    def choose(self, num: int) -> None:
        """Enqueue the choice of each sample's token."""
        of = self._buffer.device
        self.sampler.choose(
            self.backbone.logits[:num],
            of["params"][:num],
            of["uniform"][:num],
            of["sample_rows"][:num],
        )

    def add_head_term(self, num: int) -> None:
        """Enqueue lm_head's adapter term of the samples. Few adapters have one, so it is no part
        of the pass."""
        rows = self._buffer.device["head_rows"][:num].view(num, 1)
        blocks = RowBlocks(num, rows, self._buffer.device["head_adapters"][:num])
        self.backbone.add_head_term(self.backbone.lora.bind(blocks))

    def _blocks(self, shape: PassShape) -> RowBlocks:
        device, num = self._buffer.device, shape.num_blocks
        words = device["block_rows"][: num * shape.block_rows]
        return RowBlocks(
            shape.tokens, words.view(num, shape.block_rows), device["block_adapters"][:num]
        )

    def _prepare(self) -> None:
        """Compile what is launched between graphs, so that nothing is when the first step needs it:
        each kernel runs once, to no effect."""
        self._moves.enqueue(self.arena, (), 0)
        self.sampler.prepare(self.backbone.logits)

    def _clear_inputs(self) -> None:
        """A step without rows, tokens or adapters: a pass over it writes page 0 alone."""
        device = self._buffer.device
        for name in ("token_rows", "block_rows", "block_adapters", "head_rows", "head_adapters"):
            device[name].fill_(-1)
        device["sample_rows"].fill_(self.buckets.max_seqs)
        device["params"].copy_(torch.tensor(BEST_TOKEN))
