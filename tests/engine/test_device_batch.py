"""A plan as a step buffer's arrays: what is where, and what padding holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.buckets import Buckets, PassShape
from engine.device_batch import BatchFiller, attention_tiles, parts, tiles_of
from engine.model.modules import module_table
from engine.plan import Span, StepPlan
from engine.reaches import Reaches
from engine.sequence import Sequence
from engine.step_buffer import StepBuffer
from engine.types import Request, Tenant

P = 4
MAX_PAGES = 8


def span(row, tokens, start, count, adapter=-1, samples=True, on_device=False, pages=()):
    request = Request(f"r{row}", Tenant("t"), None, tuple(tokens), 10)
    sequence = Sequence(request, 0.0, tokens=list(tokens), row=row)
    return Span(sequence, row, start, count, adapter, samples, on_device, tuple(pages))


@pytest.fixture
def buckets():
    return Buckets(4, 64, 16)


@pytest.fixture
def filler(buckets):
    table = module_table(num_layers=1, hidden=8, intermediate=8, q_out=8, kv_out=8, vocab=8)
    return BatchFiller(buckets, P, MAX_PAGES, Reaches(20, table))


@pytest.fixture
def buffer(buckets):
    return StepBuffer(parts(buckets, MAX_PAGES), 2, torch.device("cpu"))


def test_a_mixed_step(filler, buffer):
    plan = StepPlan(
        0,
        (
            span(2, range(50, 70), 3, 17, adapter=7, pages=(9, 4, 6, 8, 5)),
            span(0, [1, 2, 3], 2, 1, on_device=True, pages=(3,)),
            span(3, range(10), 0, 4, adapter=7, samples=False, pages=(2,)),
        ),
    )
    host = buffer.host(1)
    for words in host.values():
        words[...] = 99
    filled = filler.fill(plan, host)
    shape = filled.shape
    assert shape.tokens == 64 and not shape.decode and shape.samples == 4
    assert [s.row for s in filled.sampled] == [2, 0]
    assert host["tokens"][:22].tolist() == [*range(53, 70), 0, 0, 1, 2, 3]
    assert host["token_rows"][:22].tolist() == [-1] * 17 + [0] + [-1] * 4
    assert host["positions"][:22].tolist() == [*range(3, 20), 2, *range(4)]
    pages = np.repeat([9, 4, 6, 8, 5], 4)[3:20] * P + np.arange(3, 20) % P
    assert host["slots"][:22].tolist() == [*pages, 3 * P + 2, 8, 9, 10, 11]
    for name in ("tokens", "positions", "slots"):
        assert not host[name][22:64].any()
    assert (host["token_rows"][22:64] == -1).all()
    assert host["samples"].tolist() == [16, 17, 0, 0]
    assert host["sample_rows"].tolist() == [2, 0, 4, 4]
    width = tiles_of(shape, 4)
    tiles = host["tiles"][: 4 * width].reshape(4, width)
    assert tiles[:, :4].T.tolist() == [[0, 16, 2, 19], [16, 1, 2, 20], [17, 1, 0, 3], [18, 4, 3, 4]]
    assert not tiles[:, 4:].any()
    size = shape.num_blocks * shape.block_rows
    blocks = host["block_rows"][:size].reshape(shape.num_blocks, -1)
    assert sorted(blocks[blocks >= 0]) == list(range(22))
    assert host["block_adapters"][:3].tolist() == [-1, 7, 7]
    assert host["head_adapters"].tolist() == [7, -1, -1, -1]
    assert host["head_rows"].tolist() == [0, 1, -1, -1]
    assert host["pages"][2, :5].tolist() == [9, 4, 6, 8, 5]
    assert filled.num_rows == 4


def test_a_decode_step_is_one_tile_a_row(filler, buffer):
    spans = tuple(
        span(row, range(5), 4, 1, on_device=True, pages=(row + 1, row + 5)) for row in (1, 0, 3)
    )
    host = buffer.host(0)
    filled = filler.fill(StepPlan(0, spans), host)
    assert filled.shape == PassShape(4, 4, True)
    tiles = host["tiles"][:16].reshape(4, 4)
    assert tiles.tolist() == [[0, 1, 2, 0], [1, 1, 1, 0], [1, 0, 3, 0], [5, 5, 5, 0]]
    assert host["slots"][:4].tolist() == [6 * P, 5 * P, 8 * P, 0]


def test_a_rows_pages_follow_its_sequence(filler, buffer):
    for pages in ((1, 2), (1, 2, 3), (7, 2, 3)):
        start = len(pages) * P - 1
        plan = StepPlan(0, (span(1, range(20), start, 1, samples=False, pages=pages),))
        filler.fill(plan, buffer.host(0))
        assert tuple(buffer.host(0)["pages"][1, : len(pages)]) == pages


def test_an_upload_carries_the_rows_asked_for(buckets, buffer):
    host = buffer.host(1)
    host["tokens"][:] = 5
    host["pages"][:] = 6
    buffer.upload(1, 3)
    assert (buffer.device["tokens"] == 5).all()
    assert (buffer.device["pages"][:3] == 6).all() and not buffer.device["pages"][3:].any()


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 70)), min_size=1, max_size=9))
def test_tiles_cover_every_token_once(spans):
    start, count = np.array(spans).T
    first = np.cumsum(count) - count
    out = np.full((4, int(count.sum())), 77, np.int32)
    attention_tiles(np.arange(len(spans)), first, count, start + count, 16, out)
    seen = []
    for token, num, row, context in out.T[out[1] > 0]:
        assert num <= 16
        assert context == start[row] + (token - first[row]) + num
        seen += range(token, token + num)
    assert seen == list(range(int(count.sum())))
