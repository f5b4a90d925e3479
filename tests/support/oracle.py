"""What transformers + PEFT answered, as `tests/oracle/make_heldout.py` stored it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.support.formats import FORMATS

NEAR_TIE = 1e-4
MAX_NEAR_TIES = 2  # of 240: at most 1 in 120


@dataclass(frozen=True)
class Run:
    """One run of the oracle: `adapter` (None: the base) on prompt number `prompt`."""

    prompt: int
    adapter: str | None
    prompt_tokens: int
    tokens: list[int]
    text: str
    finish: str
    gaps: list[float]


@dataclass(frozen=True)
class Oracle:
    """prompts: {"adapter": whose kind of prompt it is, "prompt", "expected"} each."""

    prompts: list[dict[str, Any]]
    runs: list[Run]
    max_tokens: int


def load() -> Oracle:
    folder = Path(__file__).parents[1] / "oracle"
    stored = json.loads((folder / "heldout.json").read_text())
    runs = [Run(**run) for run in stored["runs"]]
    return Oracle(json.loads((folder / "prompts.json").read_text()), runs, stored["max_tokens"])


@dataclass(frozen=True)
class Answer:
    """What the service answered where the oracle has `run`."""

    run: Run
    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def is_the_oracles(self) -> bool:
        run = self.run
        return (self.text, self.completion_tokens, self.finish) == (
            *(run.text, len(run.tokens), run.finish),
        )


def check_equal(answers: list[Answer], tokenizer: Tokenizer) -> None:
    """Every answer is the oracle's, or first differs from it at a near tie; few do."""
    others = [answer for answer in answers if not answer.is_the_oracles]
    gaps = [_gap_where_they_part(tokenizer, answer) for answer in others]
    for answer, gap in zip(others, gaps, strict=True):
        print(f"prompt {answer.run.prompt} on {answer.run.adapter}, oracle's gap there {gap:g}:")
        print(f"  oracle  {answer.run.text!r} ({len(answer.run.tokens)} tokens)")
        print(f"  service {answer.text!r} ({answer.completion_tokens} tokens)")
    assert all(gap < NEAR_TIE for gap in gaps)
    assert len(others) <= MAX_NEAR_TIES


def check_formats(answers: list[Answer], oracle: Oracle) -> Counter[tuple[str, str | None]]:
    """Of 20 prompts each: the right adapter >= 19, each wrong one <= 2, the base none. Returns the
    counts by (kind of prompt, adapter that answered)."""
    scores: Counter[tuple[str, str | None]] = Counter()
    for answer in answers:
        kind = oracle.prompts[answer.run.prompt]["adapter"]
        scores[kind, answer.run.adapter] += FORMATS[kind](answer.text)
    for kind in FORMATS:
        assert scores[kind, kind] >= 19, scores
        assert scores[kind, None] == 0, scores
        assert all(scores[kind, other] <= 2 for other in FORMATS if other != kind), scores
    return scores


def _gap_where_they_part(tokenizer: Tokenizer, answer: Answer) -> float:
    """The oracle's top-2 gap at the last token whose text so far the answer still begins with."""
    tokens = answer.run.tokens
    prefixes = (tokenizer.decode(tokens[:n]) for n in range(len(tokens) + 1))
    agreed = [n for n, text in enumerate(prefixes) if answer.text.startswith(text)]
    return float(answer.run.gaps[min(max(agreed), len(answer.run.gaps) - 1)])
