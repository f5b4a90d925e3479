"""The device's sampler draws what the CPU's draws, from the same plans."""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import Sampling
from engine.device_sampler import BEST_TOKEN, DeviceSampler
from engine.plan import Span, StepPlan
from engine.rows import RowTable
from engine.sampler import Sampler
from engine.sequence import Sequence
from engine.types import Request, SamplingParams, Tenant

VOCAB = 97
OPTIONS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, seed=1),
    SamplingParams(temperature=1.3, top_k=5, seed=2),
    SamplingParams(temperature=0.9, top_p=0.6, seed=3),
    SamplingParams(temperature=1.0, min_p=0.2, seed=4),
    SamplingParams(temperature=0.0, repetition_penalty=1.8),
    SamplingParams(temperature=0.8, presence_penalty=1.5, frequency_penalty=0.7, seed=5),
    SamplingParams(temperature=0.0, logit_bias=((3, 50.0), (4, -50.0))),
    SamplingParams(temperature=0.6, top_k=40, top_p=0.9, logit_bias=((7, 2.0),), seed=6),
]


def sequences(options):
    made = []
    for row, sampling in enumerate(options):
        prompt = tuple(range(row, row + 6))
        request = Request(f"r{row}", Tenant("t"), None, prompt, 100, sampling)
        made.append(Sequence(request, 0.0, tokens=list(prompt), row=row))
    return made


def plan_of(number, these, new):
    spans = tuple(Span(s, s.row, len(s.tokens) - 1, 1, -1, True, False, (1,)) for s in these)
    return StepPlan(number, spans, new_rows=tuple(s.row for s in these) if new else ())


class OnCpu:
    def __init__(self, max_rows):
        self.rows, self.sampler = RowTable(max_rows), Sampler(max_rows, VOCAB)

    def draw(self, plan, logits):
        arrays = self.rows.begin(plan) | self.rows.sampling(list(plan.spans))
        of = Sampling(**{k: torch.from_numpy(np.asarray(v)) for k, v in arrays.items()})
        tokens, failed = self.sampler.sample(logits.clone(), of)
        return [-1 if bad else int(t) for t, bad in zip(tokens, failed, strict=True)]


class OnDevice:
    def __init__(self, max_rows):
        self.sampler = DeviceSampler(max_rows, VOCAB, 16, 3, torch.device("cpu"))

    def draw(self, plan, logits):
        logits = logits.clone()
        buffer = {"params": np.zeros((50, 7)), "uniform": np.zeros(50)}
        self.sampler.begin(plan, plan.spans, buffer, plan.id % 3)
        rows = torch.tensor([span.row for span in plan.spans])
        params, uniform = (torch.from_numpy(buffer[name]) for name in ("params", "uniform"))
        assert (params[len(rows) :] == torch.tensor(BEST_TOKEN)).all()
        self.sampler.add_biases(logits)
        self.sampler.choose(logits, params[: len(rows)], uniform[: len(rows)], rows)
        drawn = self.sampler.result[: len(rows)].tolist()
        assert self.sampler.last[rows].tolist() == [max(token, 0) for token in drawn]
        return drawn


def test_every_option_draws_as_on_the_cpu():
    """Step after step, with what was drawn counted."""
    both = [(OnCpu(50), sequences(OPTIONS)), (OnDevice(50), sequences(OPTIONS))]
    generator = torch.Generator().manual_seed(3)
    for number in range(6):
        logits = torch.randn(len(OPTIONS), VOCAB, generator=generator) * 3
        drawn = []
        for sampler, these in both:
            drawn.append(sampler.draw(plan_of(number, these, number == 0), logits))
            for sequence, token in zip(these, drawn[-1], strict=True):
                sequence.tokens.append(token)
        assert drawn[0] == drawn[1]


def test_rows_that_are_not_finite_fail_alone():
    sampler, these = OnDevice(16), sequences(OPTIONS)
    logits = torch.randn(len(OPTIONS), VOCAB)
    good = sampler.draw(plan_of(0, these, True), logits)
    for value in (torch.nan, torch.inf, -torch.inf):
        bad = logits.clone()
        bad[1, 5] = bad[5, 90] = value
        again = OnDevice(16).draw(plan_of(0, these, True), bad)
        assert [i for i, token in enumerate(again) if token < 0] == [1, 5]
        assert all(
            a == g for i, (a, g) in enumerate(zip(again, good, strict=True)) if i not in (1, 5)
        )
