"""The tensors of one plan, built on the host into one packed buffer.

All that a step reads from the host lies in that buffer, int64 throughout (floats by their bits), so
a device gets it in one copy. On the CPU the tensors are views of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.plan import StepPlan
from engine.rows import RowTable
from kernels.segments import Ints, Segments, group_rows

Array = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the N sampled rows draw. uniform [N]: this draw's number in [0, 1).

    params       [N, 7] float64, columns as in `engine.rows`
    bias_*       logit_bias entries: index of the sampled row, token, amount
    new_*        penalised rows that begin: row, token, and 0 for prompt or 1 for output
    """

    rows: torch.Tensor
    params: torch.Tensor
    uniform: torch.Tensor
    bias_index: torch.Tensor
    bias_token: torch.Tensor
    bias: torch.Tensor
    new_rows: torch.Tensor
    new_row: torch.Tensor
    new_token: torch.Tensor
    new_output: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S spans, N of which sample.

    tokens         [T] ids; those sampled by a plan not yet committed are filled in on the device:
    device_tokens  [K] which of the T, and
    device_rows    [K] the rows whose last token they are
    positions      [T] in their sequence
    slots          [T] physical page x P + place in the page, where keys and values go
    fresh_pages    physical pages begun and not filled by this plan: cleared before the pass, so
                   that nothing left there can reach a sum
    span_starts    [S] first token of each span; span_tokens [S] how many
    contexts       [S] tokens of the sequence up to the span's end
    pages          [S, most pages] physical positions, 0 beyond a span's own
    samples        [N] the token whose hidden state is sampled
    segments       of the T tokens; head_segments of the N sampled rows
    """

    num_tokens: int
    tokens: torch.Tensor
    device_tokens: torch.Tensor
    device_rows: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    fresh_pages: torch.Tensor
    span_starts: torch.Tensor
    span_tokens: torch.Tensor
    contexts: torch.Tensor
    pages: torch.Tensor
    samples: torch.Tensor
    segments: Segments
    head_segments: Segments
    sampling: Sampling


class PackedBuffer:
    """A host buffer of int64 words. `pack` overwrites what it held before."""

    def __init__(self, num_words: int = 4096) -> None:
        self._words = np.empty(num_words, np.int64)

    def pack(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Copy the arrays in, one after another; tensors of their shapes, viewing the buffer."""
        need = sum(array.size for array in arrays.values())
        if need > len(self._words):
            self._words = np.empty(2 * need, np.int64)
        tensors, end = {}, 0
        for name, array in arrays.items():
            words = self._words[end : end + array.size]
            end += array.size
            words[:] = np.ascontiguousarray(array).reshape(-1).view(np.int64)
            tensors[name] = torch.from_numpy(words.view(array.dtype).reshape(array.shape))
        return tensors


def build_batch(
    plan: StepPlan, rows: RowTable, page_tokens: int, max_segment_rows: int, buffer: PackedBuffer
) -> Batch:
    """The batch of `plan`, whose new rows are entered into `rows` first."""
    penalised = rows.begin(plan)
    spans = plan.spans
    counts = np.array([span.num_tokens for span in spans], np.int64)
    starts = np.cumsum(counts) - counts
    adapters = np.array([span.adapter for span in spans], np.int64)
    sampled = [i for i, span in enumerate(spans) if span.samples]
    arrays = _tokens(plan, counts, starts, page_tokens)
    arrays["samples"] = (starts + counts - 1)[sampled]
    segments = (
        ("segments", group_rows(np.repeat(adapters, counts), max_segment_rows)),
        ("head_segments", group_rows(adapters[sampled], max_segment_rows)),
    )
    for name, parts in segments:
        arrays |= {f"{name}.{i}": part for i, part in enumerate(parts)}
    sampling = rows.sampling([spans[i] for i in sampled]) | penalised
    tensors = buffer.pack(arrays | {f"sampling.{k}": v for k, v in sampling.items()})
    return Batch(
        num_tokens=int(counts.sum()),
        segments=Segments(int(counts.sum()), *(tensors.pop(f"segments.{i}") for i in range(3))),
        head_segments=Segments(
            len(sampled), *(tensors.pop(f"head_segments.{i}") for i in range(3))
        ),
        sampling=Sampling(**{k: tensors.pop(f"sampling.{k}") for k in sampling}),
        **tensors,
    )


def _tokens(plan: StepPlan, counts: Ints, starts: Ints, page_tokens: int) -> dict[str, Array]:
    """What belongs to tokens and spans."""
    spans = plan.spans
    ids: list[int] = []
    for span in spans:
        on_host = span.sequence.tokens[span.start : span.start + span.num_tokens]
        ids += [0] if span.token_on_device else on_host
    on_device = [i for i, span in enumerate(spans) if span.token_on_device]
    first = np.array([span.start for span in spans], np.int64)
    positions = np.arange(len(ids)) + np.repeat(first - starts, counts)
    contexts = first + counts
    width = max((len(span.pages) for span in spans), default=0)
    pages = np.zeros((len(spans), width), np.int64)
    for i, span in enumerate(spans):
        pages[i, : len(span.pages)] = span.pages
    span_of = np.repeat(np.arange(len(spans)), counts)
    page = pages[span_of, positions // page_tokens]
    last = contexts // page_tokens
    fresh = (contexts % page_tokens > 0) & (last * page_tokens >= first)
    return {
        "tokens": np.array(ids, np.int64),
        "device_tokens": starts[on_device],
        "device_rows": np.array([spans[i].row for i in on_device], np.int64),
        "positions": positions,
        "slots": page * page_tokens + positions % page_tokens,
        "fresh_pages": pages[fresh, last[fresh]],
        "span_starts": starts,
        "span_tokens": counts,
        "contexts": contexts,
        "pages": pages,
    }
