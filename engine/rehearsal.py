"""Measures what each pass of a device costs, before the first request.

Plans are made up and launched as any other, without adapters: rows with one token each, or prompts
that fill the pass. They write into pages that belong to nobody yet. Standard library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Several
from statistics import median
from typing import Protocol

from engine.pass_costs import PassCosts
from engine.plan import NO_ADAPTER, Launch, Span, StepPlan
from engine.sequence import Sequence
from engine.types import Request, SamplingParams, Tenant

RUNS = 3
"""Of each pass."""
PROMPT = 128
"""Tokens of a prompt, at most."""
CONTEXT = 1024
"""Tokens that a row reads where reading is measured, as far as there are so many."""

Spans = tuple[Span, ...]


class Launches(Protocol):
    """What is asked of a runner."""

    def launch(self, plan: StepPlan) -> Launch: ...


class Rehearsal:
    """num_pages of page_tokens each, the first of which is not used; max_len tokens of a
    sequence."""

    def __init__(self, runner: Launches, num_pages: int, page_tokens: int, max_len: int) -> None:
        self._runner = runner
        self._num_pages, self._page_tokens, self._max_len = num_pages, page_tokens, max_len
        self._num_plans = 0

    def measure(self, rows: Several[int], tokens: Several[int]) -> PassCosts:
        """Decode passes of so many rows, and mixed passes of so many tokens; ascending."""
        num = rows[-1]
        room = (self._num_pages - 1) * self._page_tokens // num
        context = max(2, min(CONTEXT, room, self._max_len))
        # The large ones first: small ones are then measured on a device that is as busy as ever.
        prompts = self._costs([self._prompts(n, num) for n in tokens])
        decode = self._costs([self._rows(n, 1) for n in rows])
        reads = [self._rows(num, n, mixed) for mixed in (True, False) for n in (1, context)]
        found = [seconds for seconds, _ in self._costs(reads)]
        per_token = 1 / (num * (context - 1))
        mixed_read_s = max(0.0, found[1] - found[0]) * per_token
        decode_read_s = max(0.0, found[3] - found[2]) * per_token
        return PassCosts(
            tuple(
                (n, s - mixed_read_s * read) for n, (s, read) in zip(tokens, prompts, strict=True)
            ),
            tuple((n, s - decode_read_s * read) for n, (s, read) in zip(rows, decode, strict=True)),
            mixed_read_s,
            decode_read_s,
        )

    def _costs(self, passes: Several[Spans]) -> list[tuple[float, int]]:
        """(seconds on the device, tokens of context read) of each. The next pass is launched before
        one is waited for, so that the device never waits for the host."""
        taken: list[list[float]] = [[] for _ in passes]
        in_flight: deque[tuple[int, Launch]] = deque()
        for i in reversed([i for i in range(len(passes)) for _ in range(RUNS)]):
            new_rows = tuple(span.row for span in passes[i])
            plan = StepPlan(self._num_plans, passes[i], new_rows=new_rows)
            self._num_plans += 1
            in_flight.append((i, self._runner.launch(plan)))
            if len(in_flight) > 1:
                of, launch = in_flight.popleft()
                taken[of].append(launch.wait().seconds)
        of, launch = in_flight.popleft()
        taken[of].append(launch.wait().seconds)
        sizes = [StepPlan(0, spans).size for spans in passes]
        return [(median(s), size.num_read) for s, size in zip(taken, sizes, strict=True)]

    def _rows(self, num_rows: int, context: int, mixed: bool = False) -> Spans:
        """One token each, its context's last. mixed: one of them is no sample, so that it is no
        decode pass."""
        return tuple(
            self._span(i, context - 1, 1, samples=not (mixed and i == 0)) for i in range(num_rows)
        )

    def _prompts(self, num_tokens: int, num_rows: int) -> Spans:
        """So many tokens of prompts, as far as sequences can have them; the last prompt goes on."""
        num_tokens = min(num_tokens, num_rows * (self._max_len - 1))
        most = max(min(PROMPT, self._max_len - 1), -(-num_tokens // num_rows))
        lengths = [min(most, num_tokens - at) for at in range(0, num_tokens, most)]
        return tuple(
            self._span(i, 0, n, samples=i < len(lengths) - 1) for i, n in enumerate(lengths)
        )

    def _span(self, row: int, start: int, num_tokens: int, samples: bool) -> Span:
        tokens = [row % 100] * (start + num_tokens)
        request = Request(str(row), Tenant("-"), None, tuple(tokens), 1, SamplingParams(0.0))
        num_pages = -(-len(tokens) // self._page_tokens)
        first, others = row * num_pages, self._num_pages - 1
        pages = tuple(1 + (first + i) % others for i in range(num_pages))
        sequence = Sequence(request, 0.0, tokens=tokens, row=row)
        return Span(sequence, row, start, num_tokens, NO_ADAPTER, samples, False, pages)
