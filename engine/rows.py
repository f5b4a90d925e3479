"""Each row's sampling parameters, kept by row while its sequence holds it.

The number that a draw uses depends on (seed, position) alone, so neighbours, batch positions and
preemption never change it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.plan import Span, StepPlan

TEMPERATURE, TOP_P, TOP_K, MIN_P, PRESENCE, FREQUENCY, REPETITION = range(7)
COLUMNS = 7

Array = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


class RowTable:
    """params [rows, 7] float64 by the columns above; temperature 0 where a row is greedy."""

    def __init__(self, max_rows: int) -> None:
        self.params = np.zeros((max_rows, COLUMNS))
        self.seeds = np.zeros(max_rows, np.uint64)
        self.bias: dict[int, dict[int, float]] = {}

    def begin(self, plan: StepPlan) -> dict[str, Array]:
        """Enter the plan's new rows. Returns what penalties need of them: `new_rows`, and every
        token that such a row already has, as row, token, and 1 where it is an output."""
        new = set(plan.new_rows)
        rows: list[int] = []
        row_of: list[int] = []
        tokens: list[int] = []
        output: list[int] = []
        for span in (span for span in plan.spans if span.row in new):
            self._enter(span)
            if not self._penalised(span.row):
                continue
            request, known = span.sequence.request, span.sequence.tokens
            rows.append(span.row)
            row_of += [span.row] * len(known)
            tokens += known
            num_prompt = len(request.prompt)
            output += [0] * num_prompt + [1] * (len(known) - num_prompt)
        return {
            "new_rows": np.array(rows, np.int64),
            "new_row": np.array(row_of, np.int64),
            "new_token": np.array(tokens, np.int64),
            "new_output": np.array(output, np.int64),
        }

    def sampling(self, spans: list[Span]) -> dict[str, Array]:
        """What the sampler reads of the spans that sample."""
        rows = np.array([span.row for span in spans], np.int64)
        positions = np.array([span.start + span.num_tokens for span in spans], np.uint64)
        of = enumerate(self.bias.get(row, {}) for row in rows)
        biased = [(i, *entry) for i, biases in of for entry in biases.items()]
        return {
            "rows": rows,
            "params": self.params[rows],
            "uniform": uniform(self.seeds[rows], positions),
            "bias_index": np.array([i for i, _, _ in biased], np.int64),
            "bias_token": np.array([token for _, token, _ in biased], np.int64),
            "bias": np.array([amount for _, _, amount in biased], np.float64),
        }

    def _enter(self, span: Span) -> None:
        p = span.sequence.request.sampling
        self.params[span.row] = (
            0.0 if p.greedy else p.temperature,
            p.top_p,
            p.top_k,
            p.min_p,
            p.presence_penalty,
            p.frequency_penalty,
            p.repetition_penalty,
        )
        self.seeds[span.row] = p.seed & 0xFFFFFFFFFFFFFFFF
        self.bias.pop(span.row, None)
        if p.logit_bias:
            of = self.bias[span.row] = {}
            for token, amount in p.logit_bias:
                of[token] = of.get(token, 0.0) + amount

    def _penalised(self, row: int) -> bool:
        p = self.params[row]
        return bool(p[PRESENCE] or p[FREQUENCY] or p[REPETITION] != 1)


def uniform(seeds: Words, positions: Words) -> npt.NDArray[np.float64]:
    """[N] numbers in [0, 1), one for each (seed, position): splitmix64 over both."""
    mixed = _splitmix(_splitmix(seeds) ^ positions)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix(x: Words) -> Words:
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
