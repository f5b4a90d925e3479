"""A plan's batch: what goes where."""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import PackedBuffer, build_batch
from engine.plan import NO_ADAPTER, Span, StepPlan
from engine.rows import RowTable
from engine.sequence import Sequence
from engine.types import Request, SamplingParams, Tenant

P = 4


def sequence(tokens, row, prompt=None):
    request = Request(
        f"r{row}",
        Tenant("t"),
        None,
        tuple(tokens if prompt is None else prompt),
        9,
        sampling=SamplingParams(temperature=0.0, frequency_penalty=float(row == 2)),
    )
    return Sequence(request, 0.0, tokens=list(tokens), row=row)


def mixed_plan():
    """A first chunk, a decoding row whose token is on the device, a last chunk, a base decode."""
    spans = (
        Span(sequence(range(10, 30), 5), 5, 0, 6, 2, False, False, (9, 3)),
        Span(sequence([40, 41, 42], 1, [40, 41]), 1, 3, 1, 7, True, True, (8,)),
        Span(sequence(range(50, 59), 2, range(50, 57)), 2, 7, 2, 2, True, False, (1, 2, 6)),
        Span(sequence([60] * 5, 0), 0, 4, 1, NO_ADAPTER, True, False, (5, 4)),
    )
    return StepPlan(3, spans, new_rows=(5, 2))


def batch(plan, rows=None):
    return build_batch(plan, rows or RowTable(8), P, 64, PackedBuffer(8))


def test_tokens_positions_and_slots():
    b = batch(mixed_plan())
    assert b.num_tokens == 10
    assert b.tokens.tolist() == [10, 11, 12, 13, 14, 15, 0, 57, 58, 60]
    assert (b.device_tokens.tolist(), b.device_rows.tolist()) == ([6], [1])
    assert b.positions.tolist() == [0, 1, 2, 3, 4, 5, 3, 7, 8, 4]
    slots = [36, 37, 38, 39, 12, 13, 8 * P + 3, 2 * P + 3, 6 * P, 4 * P]
    assert b.slots.tolist() == slots


def test_spans_and_pages():
    b = batch(mixed_plan())
    assert b.span_starts.tolist() == [0, 6, 7, 9]
    assert b.span_tokens.tolist() == [6, 1, 2, 1]
    assert b.contexts.tolist() == [6, 4, 9, 5]
    assert b.pages.tolist() == [[9, 3, 0], [8, 0, 0], [1, 2, 6], [5, 4, 0]]


def test_pages_begun_and_not_filled_are_cleared():
    """3 was begun in the middle of a chunk, 6 and 4 by their first token; 8 was begun before."""
    assert batch(mixed_plan()).fresh_pages.tolist() == [3, 6, 4]


def test_rows_of_the_head_have_segments_of_their_own():
    """B-LOGITS-MAP: a chunk that does not sample, two adapters and a base row."""
    b = batch(mixed_plan())
    b.segments.check()
    b.head_segments.check()
    assert b.samples.tolist() == [6, 8, 9]
    assert b.segments.num_rows == 10 and b.head_segments.num_rows == 3
    assert b.segments.rows.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 6]
    assert b.segments.adapters.tolist() == [2, 7]
    assert b.head_segments.rows.tolist() == [1, 0]
    assert b.head_segments.adapters.tolist() == [2, 7]


def test_sampling_of_the_rows_that_sample():
    rows = RowTable(8)
    b = batch(mixed_plan(), rows)
    assert b.sampling.rows.tolist() == [1, 2, 0]
    # Row 2 began with a penalty: its seven prompt tokens and two outputs are handed over.
    assert b.sampling.new_rows.tolist() == [2]
    assert b.sampling.new_row.tolist() == [2] * 9
    assert b.sampling.new_output.tolist() == [0] * 7 + [1] * 2
    assert b.sampling.params[:, 5].tolist() == [0.0, 1.0, 0.0]
    assert b.sampling.params.dtype == torch.float64


def test_one_buffer_holds_all_and_grows():
    buffer = PackedBuffer(2)
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array([0.5, -1.0]), "c": np.array([], int)}
    tensors = buffer.pack(arrays)
    assert tensors["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["b"].tolist() == [0.5, -1.0] and tensors["b"].dtype == torch.float64
    assert tensors["c"].shape == (0,)
    whole = tensors["a"].untyped_storage()
    assert tensors["b"].data_ptr() == whole.data_ptr() + 6 * 8
