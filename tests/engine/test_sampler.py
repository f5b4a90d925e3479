"""Draws, row by row, against transformers' processors and by counting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.batch import PackedBuffer, Sampling
from engine.plan import NO_ADAPTER, Span, StepPlan
from engine.rows import RowTable, uniform
from engine.sampler import Sampler, least_weight
from engine.sequence import Sequence
from engine.types import Request, SamplingParams, Tenant

VOCAB = 600
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Rows:
    """Sequences in rows of their own, sampled together."""

    sampler: Sampler = field(default_factory=lambda: Sampler(64, VOCAB))
    table: RowTable = field(default_factory=lambda: RowTable(64))
    sequences: list[Sequence] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    def begin(self, params, prompt=(1, 2, 3), outputs=(), row=None):
        row = len(self.sequences) if row is None else row
        request = Request(f"r{row}", Tenant("t"), None, tuple(prompt), 99, sampling=params)
        sequence = Sequence(request, 0.0, tokens=[*prompt, *outputs], row=row)
        self.sequences.append(sequence)
        self.new.append(row)
        return sequence

    def sampling(self):
        spans = tuple(
            Span(s, s.row, len(s.tokens) - 1, 1, NO_ADAPTER, True, False, ())
            for s in self.sequences
        )
        began = self.table.begin(StepPlan(0, spans, new_rows=tuple(self.new)))
        self.new = []
        arrays = self.table.sampling(list(spans)) | began
        return Sampling(**PackedBuffer().pack(arrays))

    def draw(self, logits):
        """Tokens, appended to their sequences; None where a row failed."""
        tokens, failed = self.sampler.sample(logits.clone(), self.sampling())
        drawn = [
            None if bad else t for t, bad in zip(tokens.tolist(), failed.tolist(), strict=True)
        ]
        for sequence, token in zip(self.sequences, drawn, strict=True):
            sequence.tokens += [] if token is None else [token]
        return drawn


def random_logits(rows, seed=0):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def test_greedy_is_exact_and_top_k_1_is_greedy():
    rows = Rows()
    for params in (GREEDY, SamplingParams(temperature=1.5, top_k=1, seed=9)):
        rows.begin(params)
    logits = random_logits(2)
    assert rows.draw(logits) == logits.argmax(-1).tolist()


def test_a_draw_depends_on_its_own_row_alone():
    """With or without neighbours, in whatever row, after preemption: the same tokens."""
    mine = SamplingParams(temperature=1.3, top_p=0.9, seed=42, presence_penalty=0.5)
    others = [
        GREEDY,
        SamplingParams(temperature=0.7, top_k=5, seed=1, logit_bias=((3, 50.0),)),
        SamplingParams(temperature=2.0, repetition_penalty=1.3, seed=42),
        SamplingParams(temperature=1.0, min_p=0.1, seed=7),
    ]
    logits = [random_logits(1, seed) for seed in range(12)]

    def run(before, after, preempt_at=None):
        rows = Rows()
        for params in before:
            rows.begin(params)
        own = rows.begin(mine)
        for params in after:
            rows.begin(params)
        index = len(before)
        for turn, row in enumerate(logits):
            if turn == preempt_at:
                # It begins again in another row, with the outputs that it had.
                outputs = own.tokens[3:]
                own = rows.begin(mine, outputs=outputs, row=60)
                rows.sequences[index] = rows.sequences.pop()
            every = random_logits(len(rows.sequences), 99)
            every[index] = row
            rows.draw(every)
        return own.tokens[3:]

    alone = run([], [])
    assert len(alone) == 12
    assert run(others, []) == run(others[:2], others[2:]) == run([], others, 5) == alone


def test_choices_of_different_seeds_differ_and_repeat():
    def tokens():
        rows = Rows()
        for seed in range(16):
            rows.begin(SamplingParams(temperature=4.0, seed=seed))
        return rows.draw(random_logits(1).expand(16, -1))

    assert tokens() == tokens()
    assert len(set(tokens())) > 8


def test_uniform_numbers_are_spread_evenly():
    seeds = np.arange(200, dtype=np.uint64).repeat(100)
    positions = np.tile(np.arange(100, dtype=np.uint64), 200)
    numbers = uniform(seeds, positions)
    assert (numbers >= 0).all() and (numbers < 1).all()
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert abs(counts - 1000).max() < 5 * math.sqrt(1000)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_frequencies_follow_the_probabilities():
    rows = Rows(Sampler(4000, VOCAB), RowTable(4000))
    for seed in range(4000):
        rows.begin(SamplingParams(temperature=2.0, seed=seed))
    logits = torch.full((VOCAB,), -200.0)
    logits[[5, 17, 400]] = torch.tensor([0.5, 0.3, 0.2]).log() * 2
    drawn = rows.draw(logits.expand(4000, -1))
    for token, share in ((5, 0.5), (17, 0.3), (400, 0.2)):
        assert abs(drawn.count(token) / 4000 - share) < 0.03
    assert set(drawn) == {5, 17, 400}


@pytest.mark.parametrize("flat", [False, True], ids=["peaked", "flat"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(top_p=0.999),
        SamplingParams(top_p=1e-6),
        SamplingParams(min_p=0.05),
        SamplingParams(temperature=0.6, top_k=40, top_p=0.7, min_p=0.02),
        SamplingParams(temperature=1.7, top_k=500, top_p=0.95),
        SamplingParams(top_k=10_000),
    ],
)
def test_what_top_k_top_p_and_min_p_keep_is_what_transformers_keeps(params, flat):
    logits = random_logits(5) * (0.05 if flat else 1)
    processors = [TemperatureLogitsWarper(params.temperature)]
    processors += [TopKLogitsWarper(params.top_k)] if params.top_k else []
    processors += [TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    processors += [MinPLogitsWarper(params.min_p)] if params.min_p else []
    wanted = LogitsProcessorList(processors)(None, logits).isfinite()
    rows = Rows()
    for _ in range(5):
        rows.begin(params)
    weights = ((logits - logits.amax(-1, keepdim=True)).double() / params.temperature).exp()
    kept = weights >= least_weight(weights, rows.sampling().params)
    assert torch.equal(kept, wanted)


def test_repetition_penalty_is_that_of_transformers():
    rows = Rows()
    prompt, outputs = (3, 9, 9, 200), (11, 3)
    rows.begin(SamplingParams(temperature=0.0, repetition_penalty=1.4), prompt, outputs)
    rows.begin(GREEDY, prompt, outputs)
    logits = random_logits(2)
    ours = logits.clone()
    rows.sampler.sample(ours, rows.sampling())
    seen = torch.tensor([[*prompt, *outputs]])
    wanted = RepetitionPenaltyLogitsProcessor(1.4)(seen, logits[:1].clone())
    assert torch.allclose(ours[:1], wanted)
    assert torch.equal(ours[1], logits[1])


def test_presence_and_frequency_count_outputs_alone():
    rows = Rows()
    params = SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25)
    rows.begin(params, prompt=(4, 4, 5), outputs=(7, 7, 5))
    logits = torch.zeros(1, VOCAB)
    logits[0, 30] = 1.2
    ours = logits.clone()
    rows.sampler.sample(ours, rows.sampling())
    assert ours[0, [4, 7, 5, 8]].tolist() == [0.0, -1.0, -0.75, 0.0]
    # Token 30 was drawn just now and is drawn again until it has paid for it.
    drawn = [rows.draw(logits)[0] for _ in range(3)]
    assert drawn[:2] == [30, 30] and drawn[2] != 30


def test_a_row_that_begins_forgets_the_one_before():
    rows = Rows()
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0)
    rows.begin(params)
    logits = random_logits(1)
    first, second = rows.draw(logits)[0], rows.draw(logits)[0]
    assert first != second
    rows.begin(params, row=0)
    rows.sequences.pop(0)
    assert rows.draw(logits) == [first]
    rows.begin(GREEDY, row=0)
    rows.sequences.pop(0)
    assert rows.draw(logits) == [first] and rows.draw(logits) == [first]


def test_logit_bias_forbids_and_forces():
    rows = Rows()
    logits = random_logits(3)
    best = logits[0].argmax().item()
    rows.begin(SamplingParams(temperature=0.0, logit_bias=((best, -100.0),)))
    rows.begin(SamplingParams(temperature=1.0, seed=3, logit_bias=((77, 100.0),)))
    rows.begin(GREEDY)
    drawn = rows.draw(logits[:1].expand(3, -1))
    assert drawn == [logits[0].topk(2).indices[1].item(), 77, best]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(value):
    rows = Rows()
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=1, frequency_penalty=0.1)
    for _ in range(3):
        rows.begin(params)
    logits = random_logits(3)
    alone = rows.draw(logits)
    rows = Rows()
    for _ in range(3):
        rows.begin(params)
    logits[1, 300] = value
    assert rows.draw(logits) == [alone[0], None, alone[2]]


def test_a_temperature_near_zero_is_nearly_greedy():
    rows = Rows()
    rows.begin(SamplingParams(temperature=1e-9, seed=5))
    logits = random_logits(1) * 1000
    assert rows.draw(logits) == logits.argmax(-1).tolist()
