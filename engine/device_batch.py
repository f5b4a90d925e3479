"""A plan as the arrays of a step buffer: what a captured pass reads, padded to the pass's shape.

Padding tokens write their keys and values to page 0, belong to no block and to no attention tile;
padding samples repeat token 0 and leave their token in a row that nobody has. numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from engine.buckets import Buckets, PassShape
from engine.plan import Span, StepPlan
from engine.reaches import Reaches
from engine.rows import COLUMNS
from engine.step_buffer import Part, Words
from kernels.blocks import group_blocks
from kernels.segments import Ints

TILE_TOKENS = 16
"""Tokens of an attention tile in a pass that is not a decode pass."""


def parts(buckets: Buckets, max_pages: int) -> dict[str, Part]:
    """Of a step buffer.

    tokens, positions, slots [T]; token_rows [T]: the row whose last token on the device is the
    input, -1 where `tokens` says it. samples [N] tokens; sample_rows [N] their rows.
    params [N, 7], uniform [N]: how they draw, see `engine.rows`; written by the sampler.
    tiles [4, n]: see `kernels.paged_attention.Tiles`, for decode passes and others.
    block_rows, block_adapters: see `kernels.blocks`, flat; head_* those of the N samples.
    pages [rows, max_pages] physical positions of each row's pages.
    """
    long, word, real = torch.int64, torch.int32, torch.float64
    tokens, rows = buckets.max_tokens, buckets.max_seqs
    tokens = max(tokens, rows)
    return {
        "tokens": Part(long, (tokens,)),
        "token_rows": Part(long, (tokens,)),
        "positions": Part(long, (tokens,)),
        "slots": Part(long, (tokens,)),
        "samples": Part(long, (rows,)),
        "sample_rows": Part(long, (rows,)),
        "params": Part(real, (rows, COLUMNS)),
        "uniform": Part(real, (rows,)),
        "tiles": Part(word, (4 * num_tiles(tokens, rows),)),
        "block_rows": Part(word, (buckets.max_block_words,)),
        "block_adapters": Part(word, (buckets.max_blocks,)),
        "head_rows": Part(word, (rows,)),
        "head_adapters": Part(word, (rows,)),
        "pages": Part(word, (rows, max_pages)),
    }


def num_tiles(tokens: int, rows: int) -> int:
    """Attention tiles of a pass of `tokens` tokens of up to `rows` sequences, which may each end
    with a tile that isn't full."""
    return tokens // TILE_TOKENS + min(rows, tokens)


def tiles_of(shape: PassShape, max_seqs: int) -> int:
    return shape.tokens if shape.decode else num_tiles(shape.tokens, max_seqs)


class PageTable:
    """Each row's pages, kept from step to step: most rows' don't change between two."""

    def __init__(self, max_seqs: int, max_pages: int) -> None:
        self.words = np.zeros((max_seqs, max_pages), np.int32)
        self._known: list[tuple[int, ...]] = [()] * max_seqs

    def set(self, row: int, pages: tuple[int, ...]) -> None:
        if pages is not self._known[row]:
            self.words[row, : len(pages)] = pages
            self._known[row] = pages


@dataclass(frozen=True, slots=True)
class Filled:
    """A plan in a buffer. adapters: of each token. sampled: spans that sample, in order."""

    shape: PassShape
    num_rows: int
    sampled: list[Span]


class BatchFiller:
    """Writes plans into step buffers; `page_tokens` is P."""

    def __init__(
        self, buckets: Buckets, page_tokens: int, max_pages: int, reaches: Reaches
    ) -> None:
        self._buckets = buckets
        self._reaches = reaches
        self._page_tokens = page_tokens
        self._table = PageTable(buckets.max_seqs, max_pages)

    def fill(self, plan: StepPlan, into: Mapping[str, Words]) -> Filled:
        """Raises ValueError where the plan is larger than any shape."""
        spans = plan.spans
        for span in spans:
            self._table.set(span.row, span.pages)
        fields = np.array([span[1:5] for span in spans], np.int64)
        row, start, count, adapter = fields.T
        sampled = [span for span in spans if span.samples]
        is_decode = len(sampled) == len(spans) == int(count.sum())
        adapters = np.repeat(adapter, count)
        shape = self._buckets.choose(adapters, is_decode, self._reaches.of(adapter))
        first = np.cumsum(count) - count
        num = len(adapters)
        positions = np.arange(num) + np.repeat(start - first, count)
        self._tokens(spans, first, into, num)
        into["positions"][:num] = positions
        page = self._table.words[np.repeat(row, count), positions // self._page_tokens]
        into["slots"][:num] = page.astype(np.int64) * self._page_tokens
        into["slots"][:num] += positions % self._page_tokens
        for name in ("tokens", "positions", "slots"):
            into[name][num : shape.tokens] = 0
        into["token_rows"][num : shape.tokens] = -1
        self._samples(spans, first + count - 1, shape, into)
        width = tiles_of(shape, self._buckets.max_seqs)
        tiles = into["tiles"][: 4 * width].reshape(4, width)
        attention_tiles(row, first, count, start + count, 1 if shape.decode else TILE_TOKENS, tiles)
        self._blocks(adapters, [span.adapter for span in sampled], shape, into)
        num_rows = int(row.max()) + 1
        into["pages"][:num_rows] = self._table.words[:num_rows]
        return Filled(shape, num_rows, sampled)

    def _tokens(
        self, spans: tuple[Span, ...], first: Ints, into: Mapping[str, Words], num: int
    ) -> None:
        ids: list[int] = []
        rows = np.full(num, -1, np.int64)
        for i, span in enumerate(spans):
            if span.token_on_device:
                rows[first[i]] = span.row
                ids.append(0)
            else:
                ids += span.sequence.tokens[span.start : span.start + span.num_tokens]
        into["tokens"][:num] = ids
        into["token_rows"][:num] = rows

    def _samples(
        self, spans: tuple[Span, ...], last: Ints, shape: PassShape, into: Mapping[str, Words]
    ) -> None:
        which = [i for i, span in enumerate(spans) if span.samples]
        into["samples"][: len(which)] = last[which]
        into["samples"][len(which) : shape.samples] = 0
        into["sample_rows"][: len(which)] = [spans[i].row for i in which]
        into["sample_rows"][len(which) : shape.samples] = self._buckets.max_seqs

    def _blocks(
        self, adapters: Ints, of_samples: list[int], shape: PassShape, into: Mapping[str, Words]
    ) -> None:
        if not shape.has_adapters:
            return
        rows, owners = group_blocks(adapters, shape.block_rows, shape.num_blocks)
        into["block_rows"][: rows.size] = rows.reshape(-1)
        into["block_adapters"][: len(owners)] = owners
        num = shape.samples
        into["head_rows"][:num] = -1
        into["head_rows"][: len(of_samples)] = np.arange(len(of_samples))
        into["head_adapters"][:num] = -1
        into["head_adapters"][: len(of_samples)] = of_samples


def attention_tiles(
    row: Ints, first: Ints, count: Ints, context: Ints, most: int, out: Words
) -> None:
    """Cut spans into tiles of at most `most` tokens. out [4, n]: written, zeros beyond them."""
    num = -(-count // most)
    span = np.repeat(np.arange(len(count)), num)
    before = (np.arange(len(span)) - np.repeat(np.cumsum(num) - num, num)) * most
    taken = np.minimum(count[span] - before, most)
    used = len(span)
    out[0, :used] = first[span] + before
    out[1, :used] = taken
    out[2, :used] = row[span]
    out[3, :used] = context[span] - count[span] + before + taken
    out[:, used:] = 0
