"""The forward pass on a GPU as a fixed sequence of launches, so that it can be captured.

Everything it reads and writes has a fixed address: `Inputs` are views of a step buffer, activations
are views of buffers made once for the largest pass. The norm is split between kernels, see
`kernels.norm`; the adapter term is added where its result is read next, see `kernels.lora_gpu`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from engine.buckets import PassShape
from engine.model.modules import FUSED, LAYER_MODULES
from engine.model.rope import inverse_frequencies
from engine.model.spec import BackboneSpec
from engine.model.weights import LayerWeights, Weights
from kernels.blocks import RowBlocks
from kernels.gate import silu_gate
from kernels.lora_gpu import BoundLoraGpu, LoraGpu, Term
from kernels.norm import Squares, norm_rows
from kernels.paged_attention import PagedAttention, Tiles
from kernels.residual import add_residual, embed, part_width
from kernels.rotary import Heads, rotate_and_store
from kernels.tuning import Tuning, tuning_for

QKV, OUT, GATE_UP, DOWN = range(4)
"""Groups of modules that share an input, by their place in FUSED."""
BESIDE_ROWS = 64
"""Up to so many rows a product leaves the chip room for a shrink beside it."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of one pass; fields as in `engine.device_batch.parts`. tokens: those of the host and of the
    device together. blocks: None where no row has an adapter."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    samples: torch.Tensor
    tiles: Tiles
    pages: torch.Tensor
    blocks: RowBlocks | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What buffers are made for: the largest pass, and the arena's page_tokens (P)."""

    page_tokens: int
    num_positions: int
    max_tokens: int
    max_samples: int
    max_blocks: int
    max_rank: int


class CudaBackbone:
    """spec, weights on the device, and the arena [pages, elements] with its adapter table.

    logits [max_samples, V] in the serving dtype: what a pass leaves.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        weights: Weights,
        arena: torch.Tensor,
        table: torch.Tensor,
        limits: Limits,
    ) -> None:
        self.spec, self._weights = spec, weights
        self._arena = arena.view(-1)
        modules = spec.modules
        self._embed, self._head = modules.embed_tokens.id, modules.lm_head.id
        features = np.array([(m.in_features, m.out_features) for m in modules.modules], np.int64)
        self._heads = Heads(
            spec.num_heads, spec.num_kv_heads, spec.head_dim, limits.page_tokens, arena.shape[1]
        )
        self.lora = LoraGpu(
            self._arena,
            table,
            features,
            max_rows=limits.max_tokens,
            max_blocks=limits.max_blocks,
            max_rank=limits.max_rank,
        )
        self._attention = PagedAttention(self._heads, self._arena, limits.max_samples)
        angles = torch.arange(limits.num_positions).float()[:, None] * inverse_frequencies(
            spec.rope, spec.head_dim
        )
        self._angles = torch.cat([angles.cos(), angles.sin()], -1).to(arena.device)
        self._head_norms = [_head_norms(w, spec) for w in weights.layers]
        self._side: torch.cuda.Stream | None = None
        if arena.device.type == "cuda":
            self._side = torch.cuda.Stream(arena.device)  # type: ignore[no-untyped-call]
        self._make_buffers(limits.max_tokens, limits.max_samples, arena.dtype, arena.device)

    def _make_buffers(
        self, tokens: int, samples: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        spec = self.spec

        def zeros(rows: int, columns: int) -> torch.Tensor:
            return torch.zeros(rows, columns, dtype=dtype, device=device)

        attended = spec.num_heads * spec.head_dim
        self._r = zeros(tokens, spec.hidden_size)
        self._x = zeros(tokens, spec.hidden_size)
        self._y = zeros(tokens, spec.hidden_size)
        self._qkv = zeros(tokens, attended + 2 * spec.num_kv_heads * spec.head_dim)
        self._mixed = zeros(tokens, attended)
        self._gate_up = zeros(tokens, 2 * spec.intermediate_size)
        self._gated = zeros(tokens, spec.intermediate_size)
        # Parts of a row are never narrower than 64.
        self._squares = torch.zeros(tokens * -(-spec.hidden_size // 64), device=device)
        self._h = zeros(samples, spec.hidden_size)
        self.logits = zeros(samples, spec.vocab_size)

    def run(self, shape: PassShape, of: Inputs) -> None:
        """Enqueue a pass: keys and values to the arena, logits of the samples to `logits`."""
        _Pass(self, shape, of).run()

    def add_head_term(self, lora: BoundLoraGpu) -> None:
        """Add lm_head's adapter term to the logits of the samples that `lora` is bound to."""
        num = lora.blocks.num_rows
        lora.begin()
        lora.add((self._head,), self._h[:num], self.logits[:num])


class _Pass:
    """One pass: buffers cut to its rows, and the tuning of its blocks."""

    def __init__(self, of: CudaBackbone, shape: PassShape, inputs: Inputs) -> None:
        self._of, self._in = of, inputs
        num = shape.tokens
        self._lora: BoundLoraGpu | None = None
        self._everywhere = shape.reach.everywhere
        self._plain = self._tuning = tuning_for(0)
        if inputs.blocks is not None:
            self._lora = of.lora.bind(inputs.blocks, shape.reach.rank)
            self._tuning = self._lora.tuning
        self._side = of._side if num <= BESIDE_ROWS else None
        self._r, self._x, self._y = of._r[:num], of._x[:num], of._y[:num]
        self._qkv, self._mixed = of._qkv[:num], of._mixed[:num]
        self._gate_up, self._gated = of._gate_up[:num], of._gated[:num]
        parts = -(-of.spec.hidden_size // part_width(self._tuning.residual, of._r.dtype))
        squares = of._squares[: num * parts].view(num, parts)
        self._squares = Squares(squares, of.spec.hidden_size, of.spec.rms_norm_eps)

    def run(self) -> None:
        of, layers = self._of, self._of._weights.layers
        self._begin(layers[0])
        for layer, w in enumerate(layers):
            with self._shrunk(layer, QKV, self._x, self._squares) as term:
                torch.mm(self._x, w.qkv.t(), out=self._qkv)
            self._rotate(layer, w, term)
            window = of.spec.window(layer)
            of._attention.attend(
                self._qkv, self._in.tiles, self._in.pages, layer, window, self._mixed
            )
            with self._shrunk(layer, OUT, self._mixed) as term:
                _product(self._mixed, w.o, w.o_bias, self._y)
            self._add(w.post_norm, term)
            with self._shrunk(layer, GATE_UP, self._x, self._squares) as term:
                torch.mm(self._x, w.gate_up.t(), out=self._gate_up)
            self._gate(w, term)
            with self._shrunk(layer, DOWN, self._gated) as term:
                _product(self._gated, w.down, w.down_bias, self._y)
            is_last = layer == len(layers) - 1
            self._add(of._weights.norm if is_last else layers[layer + 1].input_norm, term)
        self._finish()

    def _begin(self, first: LayerWeights) -> None:
        """The embedding, into the residual."""
        term = None
        if self._lora is not None:
            self._lora.begin()
        if self._lora is not None and self._everywhere:
            # A workspace that the first layer's shrinks don't use before the term is added.
            term = self._lora.lookup(self._of._embed, self._in.tokens, DOWN)
        embed(
            self._of._weights.embed,
            self._in.tokens,
            self._r,
            first.input_norm,
            self._x,
            self._squares,
            self._tuning_of(term).residual,
            term,
        )

    def _finish(self) -> None:
        """The head, for the samples."""
        of, samples = self._of, self._in.samples
        hidden = of._h[: len(samples)]
        norm_rows(self._r, samples, of._weights.norm, of.spec.rms_norm_eps, hidden)
        torch.mm(hidden, of._weights.head.t(), out=of.logits[: len(samples)])

    def _rotate(self, layer: int, w: LayerWeights, term: Term | None) -> None:
        of = self._of
        rotate_and_store(
            self._qkv,
            of._arena,
            of._heads,
            layer,
            of._angles,
            self._in.positions,
            self._in.slots,
            squares=self._squares,
            bias=w.qkv_bias,
            head_norms=of._head_norms[layer],
            head_eps=of.spec.rms_norm_eps,
            term=term,
            tile=self._tuning_of(term).rotary,
        )

    def _add(self, weight: torch.Tensor, term: Term | None) -> None:
        tile = self._tuning_of(term).residual
        add_residual(self._y, self._r, weight, self._x, self._squares, tile, term)

    def _gate(self, w: LayerWeights, term: Term | None) -> None:
        silu_gate(
            self._gate_up,
            self._gated,
            self._tuning_of(term).gate,
            self._squares,
            bias=w.gate_up_bias,
            term=term,
        )

    def _tuning_of(self, term: Term | None) -> Tuning:
        """Of a kernel that adds `term`. All leave whole parts of a norm, equally wide."""
        return self._plain if term is None else self._tuning

    @contextmanager
    def _shrunk(
        self, layer: int, group: int, x: torch.Tensor, squares: Squares | None = None
    ) -> Iterator[Term | None]:
        """Around the product of `group`: its term, shrunk before or beside it."""
        if self._lora is None or not (self._everywhere or group in (QKV, OUT)):
            yield None
            return
        modules = _modules(layer, group)
        if self._side is None:
            yield self._lora.shrink(modules, x, group, squares)
            return
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            term = self._lora.shrink(modules, x, group, squares)
        yield term
        main.wait_stream(self._side)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor
) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=y)
    else:
        torch.addmm(bias, x, weight.t(), out=y)


def _modules(layer: int, group: int) -> Sequence[int]:
    return [layer * len(LAYER_MODULES) + i for i in FUSED[group]]


def _head_norms(w: LayerWeights, spec: BackboneSpec) -> torch.Tensor | None:
    """[2, head_dim] of q and k."""
    if w.qk_norm is None:
        return None
    return torch.stack([w.qk_norm[0], w.qk_norm[spec.num_heads]]).contiguous()
