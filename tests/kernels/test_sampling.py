from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.batch import Sampling
from engine.sampler import Sampler
from kernels.sampling import sample

VOCAB = 150
PLAIN = (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
"""Columns as in engine.rows: temperature, top_p, top_k, min_p, presence, frequency, repetition."""
KINDS = {
    "greedy": PLAIN,
    "temperature": (0.8, 1.0, 0, 0.0, 0.0, 0.0, 1.0),
    "top_k": (0.7, 1.0, 5, 0.0, 0.0, 0.0, 1.0),
    "top_p": (1.3, 0.6, 0, 0.0, 0.0, 0.0, 1.0),
    "top_k and top_p": (0.7, 0.9, 40, 0.0, 0.0, 0.0, 1.0),
    "min_p": (1.5, 1.0, 0, 0.1, 0.0, 0.0, 1.0),
    "all": (1.1, 0.95, 50, 0.02, 0.4, 0.3, 1.2),
    "penalties alone": (0.0, 1.0, 0, 0.0, 0.9, 0.2, 1.3),
    "one token": (0.5, 0.01, 1, 0.0, 0.0, 0.0, 1.0),
}


def draws(
    logits: torch.Tensor,
    params: torch.Tensor,
    uniform: torch.Tensor,
    device: str,
    steps: int = 1,
    block: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ours, the CPU sampler's), [steps, N] each: every row has a history of tokens 3 and 7."""
    num, vocab = logits.shape
    rows = torch.arange(num)
    empty = torch.empty(0, dtype=torch.int64)
    counts = torch.zeros(num, vocab, dtype=torch.int32, device=device)
    seen = torch.zeros(num, vocab, dtype=torch.bool, device=device)
    seen[:, [3, 7]] = True
    counts[:, 7] = 2
    sampler = Sampler(num, vocab)
    history = torch.tensor([3, 7, 7, 7])
    ours, theirs = [], []
    for step in range(steps):
        of = Sampling(
            rows=rows,
            params=params,
            uniform=uniform,
            bias_index=empty,
            bias_token=empty,
            bias=torch.empty(0, dtype=torch.float64),
            new_rows=rows if step == 0 else empty,
            new_row=rows.repeat_interleave(4) if step == 0 else empty,
            new_token=history.repeat(num) if step == 0 else empty,
            new_output=torch.tensor([0, 0, 1, 1]).repeat(num) if step == 0 else empty,
        )
        theirs.append(sampler.sample(logits.float().clone(), of)[0])
        out = torch.full((num,), -7, dtype=torch.int64, device=device)
        there = (t.to(device) for t in (logits, params, uniform, rows))
        sample(*there, counts, seen, out, block=block)
        ours.append(out.cpu())
    return torch.stack(ours), torch.stack(theirs)


@pytest.mark.parametrize("kind", KINDS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_draws_what_the_cpu_draws(kind: str, dtype: torch.dtype, device: str) -> None:
    num = 4
    logits = (torch.randn(num, VOCAB) * 3).to(dtype)
    params = torch.tensor([KINDS[kind]] * num, dtype=torch.float64)
    uniform = torch.from_numpy(np.random.default_rng(0).random(num))
    ours, theirs = draws(logits, params, uniform, device, steps=2)
    assert torch.equal(ours, theirs)


def test_equal_logits_at_an_edge_are_all_kept(device: str) -> None:
    logits = torch.zeros(8, VOCAB)
    logits[:, ::25] = 2.0
    params = torch.tensor([(1.0, 1.0, 3, 0.0, 0.0, 0.0, 1.0)] * 8, dtype=torch.float64)
    uniform = torch.linspace(0, 0.999, 8, dtype=torch.float64)
    ours, theirs = draws(logits, params, uniform, device)
    assert torch.equal(ours, theirs)
    assert set(ours[0].tolist()) == {0, 25, 50, 75, 100, 125}


def test_rows_that_are_not_finite_fail_alone(device: str) -> None:
    logits = torch.randn(4, VOCAB)
    logits[1, 5], logits[2, 149] = torch.nan, torch.inf
    params = torch.tensor([KINDS["top_k"]] * 4, dtype=torch.float64)
    uniform = torch.full((4,), 0.3, dtype=torch.float64)
    ours, theirs = draws(logits, params, uniform, device)
    assert ours[0, 1] == -1 and ours[0, 2] == -1
    assert torch.equal(ours[0, [0, 3]], theirs[0, [0, 3]])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS.keys())
def test_whole_vocabularies(kind: str, cuda: str) -> None:
    num = 24
    logits = (torch.randn(num, 128256) * 2.5).to(torch.bfloat16)
    params = torch.tensor([KINDS[kind]] * num, dtype=torch.float64)
    uniform = torch.from_numpy(np.random.default_rng(1).random(num))
    ours, theirs = draws(logits, params, uniform, cuda, block=4096)
    assert torch.equal(ours, theirs)
