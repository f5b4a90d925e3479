"""Attention over pages against plain loops in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.batch import PackedBuffer, build_batch
from engine.model.attention import MAX_PADDING, PagedAttention
from engine.model.spec import read_spec
from engine.plan import NO_ADAPTER, Span, StepPlan
from engine.rows import RowTable
from engine.sequence import Sequence
from engine.types import Request, Tenant

P, LAYERS, KV_HEADS, HEADS, D = 4, 2, 2, 6, 8
SPEC = read_spec(
    {
        "model_type": "mistral",
        "hidden_size": HEADS * D,
        "intermediate_size": 8,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": 10,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1024,
        "sliding_window": 7,
    },
    {},
)
HALF = replace(SPEC, sliding_layers=(1,))
NONE = replace(SPEC, sliding_window=None, sliding_layers=())


class Case:
    """spans: (tokens of the pass, context they end at). Every page but theirs is NaN."""

    def __init__(self, spec, spans, dtype=torch.float32):
        self.spec = spec
        contexts = [context for _, context in spans]
        order = torch.randperm(sum(-(-c // P) for c in contexts)).add(1).tolist()
        self.pages = [[order.pop() for _ in range(-(-c // P))] for c in contexts]
        num_pages = sum(len(pages) for pages in self.pages) + 5
        self.arena = torch.full((num_pages, LAYERS, 2, KV_HEADS, P, D), torch.nan, dtype=dtype)
        self.arena[0] = 0
        self.kv = [torch.randn(LAYERS, 2, KV_HEADS, c, D).to(dtype) for c in contexts]
        built = []
        for row, ((num_tokens, context), pages) in enumerate(zip(spans, self.pages, strict=True)):
            request = Request(f"r{row}", Tenant("t"), None, (1,) * context, 1)
            sequence = Sequence(request, 0.0, tokens=[1] * context, row=row)
            start = context - num_tokens
            built.append(
                Span(sequence, row, start, num_tokens, NO_ADAPTER, True, False, tuple(pages))
            )
            self.store(row, start)
        self.batch = build_batch(
            StepPlan(0, tuple(built)), RowTable(64), P, 1 << 30, PackedBuffer()
        )
        self.arena[self.batch.fresh_pages] = 0
        self.q = torch.randn(self.batch.num_tokens, HEADS, D).to(dtype)
        self.spans = spans

    def store(self, row, num_tokens):
        """What earlier passes have left in the sequence's pages; a page begun was cleared."""
        for token in range(-(-num_tokens // P) * P):
            page = self.arena[self.pages[row][token // P]]
            page[:, :, :, token % P] = self.kv[row][:, :, :, token] if token < num_tokens else 0

    def answered(self, layer):
        bound = PagedAttention(self.spec, self.arena.view(-1), P).bind(self.batch)
        new = [
            kv[layer, :, :, c - n : c].permute(2, 0, 1, 3)
            for kv, (n, c) in zip(self.kv, self.spans, strict=True)
        ]
        bound.write(layer, torch.cat(new))
        return bound.attend(layer, self.q)

    def wanted(self, layer):
        rows, at = [], 0
        window = self.spec.window(layer) or 10_000
        for kv, (num_tokens, context) in zip(self.kv, self.spans, strict=True):
            for i in range(num_tokens):
                last = context - num_tokens + i
                first = max(0, last - window + 1)
                for head in range(HEADS):
                    k, v = kv[layer, :, head // (HEADS // KV_HEADS), first : last + 1].double()
                    scores = k @ self.q[at, head].double() / D**0.5
                    rows.append(torch.softmax(scores, 0) @ v)
                at += 1
        return torch.stack(rows).view(at, HEADS * D)


SPANS = {
    "one row": [(1, 1)],
    "decoding": [(1, 9), (1, 1), (1, 4), (1, 30)],
    "a first chunk": [(13, 13)],
    "chunks alike and apart": [(5, 5), (6, 30), (5, 21), (6, 6)],
    "mixed": [(1, 8), (7, 19), (1, 33), (2, 2), (7, 7), (1, 2)],
    "long beside short": [(1, 600), (1, 3), (3, 3), (1, 590), (1, 5), (1, 9), (3, 500)],
}


@pytest.mark.parametrize("spec", [NONE, SPEC, HALF], ids=["full", "window", "half"])
@pytest.mark.parametrize("spans", SPANS)
def test_every_query_sees_what_it_should(spec, spans):
    case = Case(spec, SPANS[spans])
    for layer in range(LAYERS):
        torch.testing.assert_close(
            case.answered(layer).double(), case.wanted(layer), atol=2e-6, rtol=1e-5
        )


def test_bf16():
    case = Case(HALF, SPANS["mixed"], torch.bfloat16)
    for layer in range(LAYERS):
        error = (case.answered(layer).double() - case.wanted(layer)).abs().max()
        assert error < 0.03


def test_padding_is_bounded():
    """One context of 800 tokens, 30 of a few: not thirty times the long one's pages."""
    case = Case(NONE, [(1, 800), *[(1, 5)] * 30])
    bound = PagedAttention(NONE, case.arena.view(-1), P).bind(case.batch)
    rows = sum(len(group.gather) for group in bound._groups) / (2 * KV_HEADS)
    assert rows <= 200 + 30 * 2 + 2 * MAX_PADDING
