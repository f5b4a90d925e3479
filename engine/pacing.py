"""How many prompt tokens a step takes. Pure; standard library only.

While nobody decodes, as many as are allowed: nobody waits for the step but those whose prompts it
reads. Otherwise prompts are spread, so that steps are of about the same size and the time between
two tokens is steady::

    step = max(knee, decoding + backlog / prefill_steps), filled up to the pass it is padded to
           within max_step_s and max_step_tokens, and a page of prompt at least

knee: up to there tokens are nearly free (`StepCost.knee`). backlog: the lengths of the prompts that
are half read, whole, so that a prompt is read in equal parts, and of those that wait for nothing
but room. A lone prompt thus takes at most `prefill_steps` steps; where more wait than that serves,
or rows have run out, the steps become as large as they may.
"""

from __future__ import annotations

from engine.config import ScheduleConfig
from engine.stepcost import StepCost


class Pacing:
    """page_tokens: P. Prompts get on by so much at least, however long decoding alone takes."""

    def __init__(self, schedule: ScheduleConfig, cost: StepCost, page_tokens: int) -> None:
        self._schedule = schedule
        self._cost = cost
        self._page_tokens = page_tokens

    def num_tokens(self, num_decoding: int, num_read: int, backlog: int) -> int:
        """Of prompts, in a step in which `num_decoding` rows decode and read `num_read` tokens of
        context. More than the prompts have where that costs nothing."""
        most, cost = self._schedule.max_step_tokens, self._cost
        wanted = most
        if num_decoding:
            spread = num_decoding - (-backlog // self._schedule.prefill_steps)
            wanted = min(most, max(spread, cost.knee(most)))
        timely = cost.budget(self._schedule.max_step_s, most, num_read)
        least = cost.padded(num_decoding + self._page_tokens)
        total = max(least, min(timely, cost.padded(wanted)))
        return min(total, most) - num_decoding
