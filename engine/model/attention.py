"""Attention over paged keys and values, on the CPU.

The arena is seen as [page][layer][k, v][KV head][P][D]. A batch is bound once: where each token's
keys and values go, and in which groups its queries are answered; every layer then writes and
attends with index arithmetic done before. Spans of equally many tokens and contexts of like length
form a group: decoding rows above all. Within a group the query heads of one KV head are handled as
so many queries, so that keys and values are gathered once and never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.batch import Batch
from engine.model.spec import BackboneSpec

# Pages that a group may carry as padding before a split pays for the group's own calls.
MAX_PADDING = 128


@dataclass(frozen=True, slots=True)
class _Group:
    """B sequences with Q query tokens each, over n pages.

    tokens  numbers in the batch of its B x Q query tokens, or None: all of them in order
    gather  [2 * B * KV heads * n] rows of P x D elements of layer 0, keys before values
    mask    additive, of layers without a window and (`window`) with one: [B, 1, 1, n P] float32 of
            one query a sequence, else [B, 1, query heads of a KV head x Q, n P]
    """

    num_seqs: int
    num_queries: int
    tokens: torch.Tensor | None
    gather: torch.Tensor
    mask: torch.Tensor
    window: torch.Tensor


class PagedAttention:
    """Attention over one arena. `arena` is flat, [num_pages x elements of a page]."""

    def __init__(self, spec: BackboneSpec, arena: torch.Tensor, page_tokens: int) -> None:
        self.spec = spec
        self.page_tokens = page_tokens
        self.blocks = arena.view(-1, page_tokens * spec.head_dim)
        self.vectors = arena.view(-1, spec.head_dim)
        self.page_blocks = 2 * spec.num_layers * spec.num_kv_heads

    def bind(self, batch: Batch) -> BoundAttention:
        return BoundAttention(self, batch)


class BoundAttention:
    """Writes and reads the keys and values of one batch, layer by layer."""

    def __init__(self, of: PagedAttention, batch: Batch) -> None:
        self._of = of
        spec = of.spec
        heads = torch.arange(2 * spec.num_kv_heads)
        block = (batch.slots // of.page_tokens)[:, None] * of.page_blocks + heads
        self._write = block * of.page_tokens + (batch.slots % of.page_tokens)[:, None]
        self._write = self._write.reshape(-1)
        self._groups = [self._group(batch, spans) for spans in _group_spans(batch, of.page_tokens)]

    def write(self, layer: int, keys_values: torch.Tensor) -> None:
        """Store [T, 2, KV heads, D] of `layer`: keys, then values."""
        spec, of = self._of.spec, self._of
        offset = layer * 2 * spec.num_kv_heads * of.page_tokens
        of.vectors.index_copy_(0, self._write + offset, keys_values.reshape(-1, spec.head_dim))

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """[T, heads x D] for q [T, heads, D]; the batch's own keys are written before."""
        out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype)
        for group in self._groups:
            if group.tokens is None:
                return self._answer(group, layer, q)
            out[group.tokens] = self._answer(group, layer, q[group.tokens])
        return out

    def _answer(self, group: _Group, layer: int, q: torch.Tensor) -> torch.Tensor:
        spec, of = self._of.spec, self._of
        rows = group.gather + layer * 2 * spec.num_kv_heads
        keys, values = of.blocks.index_select(0, rows).view(
            2, group.num_seqs, spec.num_kv_heads, -1, spec.head_dim
        )
        shared = spec.num_heads // spec.num_kv_heads
        mask = group.mask if spec.window(layer) is None else group.window
        num = group.num_queries
        q = q.view(group.num_seqs, num, spec.num_kv_heads, shared, spec.head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(group.num_seqs, spec.num_kv_heads, -1, spec.head_dim)
        if num == 1:
            scores = torch.matmul(q * spec.head_dim**-0.5, keys.transpose(2, 3))
            weights = torch.softmax(scores + mask, -1, dtype=torch.float32).to(q.dtype)
            return torch.matmul(weights, values).view(group.num_seqs, -1)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.view(group.num_seqs, spec.num_heads, num, spec.head_dim)
        return out.transpose(1, 2).reshape(group.num_seqs * num, -1)

    def _group(self, batch: Batch, spans: list[int]) -> _Group:
        """The group of `spans`, all with as many query tokens."""
        of, spec = self._of, self._of.spec
        num_queries = int(batch.span_tokens[spans[0]])
        contexts = batch.contexts[spans]
        num_pages = -(-int(contexts.max()) // of.page_tokens)
        pages = batch.pages[spans, :num_pages]
        side = torch.arange(2).view(2, 1, 1, 1) * spec.num_kv_heads
        head = torch.arange(spec.num_kv_heads).view(1, 1, -1, 1)
        gather = (pages[None, :, None, :] * of.page_blocks + side + head).reshape(-1)
        tokens = (batch.span_starts[spans][:, None] + torch.arange(num_queries)).reshape(-1)
        whole = torch.equal(tokens, torch.arange(batch.num_tokens))
        last = contexts[:, None] + torch.arange(num_queries) - num_queries
        mask, window = self._masks(last, num_pages * of.page_tokens)
        return _Group(len(spans), num_queries, None if whole else tokens, gather, mask, window)

    def _masks(self, last: torch.Tensor, num_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(without, with the window). last [B, Q]: the last position that each query sees."""
        spec = self._of.spec
        key, last = torch.arange(num_keys), last[:, None, :, None]
        mask = torch.zeros(*last.shape[:3], num_keys).masked_fill_(key > last, -torch.inf)
        window = mask
        if spec.sliding_window is not None:
            window = mask.masked_fill(key <= last - spec.sliding_window, -torch.inf)
        if last.shape[2] == 1:
            return mask, window
        shared = spec.num_heads // spec.num_kv_heads
        mask, window = (
            m.repeat(1, 1, shared, 1).to(self._of.vectors.dtype) for m in (mask, window)
        )
        return mask, window


def _group_spans(batch: Batch, page_tokens: int) -> list[list[int]]:
    """Spans by group: of equally many tokens, the longest contexts first, so that a group's padding
    stays under MAX_PADDING pages."""
    pages = (-(-batch.contexts // page_tokens)).tolist()
    by_tokens: dict[int, list[int]] = {}
    for span, num_tokens in enumerate(batch.span_tokens.tolist()):
        by_tokens.setdefault(num_tokens, []).append(span)
    groups: list[list[int]] = []
    for spans in by_tokens.values():
        if len(spans) * max(pages[span] for span in spans) > MAX_PADDING:
            spans.sort(key=lambda span: -pages[span])
        padding = 0
        groups.append(spans[:1])
        for span in spans[1:]:
            padding += pages[groups[-1][0]] - pages[span]
            if padding > MAX_PADDING:
                groups.append([])
                padding = 0
            groups[-1].append(span)
    return groups
