"""How long prompts and answers are, in tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import RandomState

Lengths = list[tuple[int, int]]
"""(input, output) tokens of each request."""


def uniform(
    random: RandomState, inputs: Sequence[int], outputs: Sequence[int], count: int
) -> Lengths:
    """Both uniform in [low, high), inputs drawn first."""
    drawn_inputs = random.randint(inputs[0], inputs[1], count)
    drawn_outputs = random.randint(outputs[0], outputs[1], count)
    return [(int(i), int(o)) for i, o in zip(drawn_inputs, drawn_outputs, strict=True)]


def punica(random: RandomState, max_len: int, count: int) -> Lengths:
    """Punica's stand-in for ShareGPT: prompts 18·exp(0.8·N(0,1)) - 1, between 1 and max_len - 2; a
    total uniform below max_len, of which the answer is the rest, and at least 2."""
    prompts = np.clip(18 * np.exp(0.8 * random.standard_normal(count)) - 1, 1, max_len - 2)
    totals = random.randint(0, max_len, count)
    return [(int(p), max(2, int(t) - int(p))) for p, t in zip(prompts, totals, strict=True)]
