"""The sampler alone: rows of a large vocabulary, all greedy or half of them drawing."""

from __future__ import annotations

import torch

from kernels.bench.graphs import COPY_BANDWIDTH, capture, milliseconds
from kernels.sampling import sample

GREEDY = (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
DRAWING = (0.7, 0.9, 40.0, 0.0, 0.0, 0.0, 1.0)
"""Columns as in `kernels.sampling`."""


def measure_sampler(num_rows: int, vocab: int, drawing: int, device: str = "cuda") -> float:
    """Milliseconds for `num_rows` rows, of which `drawing` draw at 0.7, top_p 0.9, top_k 40."""
    logits = (torch.randn(num_rows, vocab, device=device) * 2.5).to(torch.bfloat16)
    params = torch.tensor([DRAWING] * drawing + [GREEDY] * (num_rows - drawing), device=device)
    params = params.double()
    uniform = torch.rand(num_rows, dtype=torch.float64, device=device)
    rows = torch.arange(num_rows, device=device)
    counts = torch.zeros(num_rows, vocab, dtype=torch.int32, device=device)
    seen = torch.zeros(num_rows, vocab, dtype=torch.bool, device=device)
    out = torch.empty(num_rows, dtype=torch.int64, device=device)
    graph = capture(lambda: sample(logits, params, uniform, rows, counts, seen, out))
    return milliseconds([graph])[0]


def floor_ms(num_rows: int, vocab: int) -> float:
    """The logits read once."""
    return 2e3 * num_rows * vocab / COPY_BANDWIDTH
