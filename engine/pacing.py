"""How many prompt tokens a step takes. Pure; standard library only.

While nobody decodes, as many as are allowed: nobody waits for the step but those whose prompts it
reads. Otherwise prompts are spread, so that steps are of about the same size and the time between
two tokens is steady::

    step = max(knee, decoding + due), filled up to the pass it is padded to within max_step_s and
           max_step_tokens, and a page of prompt at least
    due  = max (tokens unread that came `age` steps ago or earlier) / (prefill_steps - age)
           over age = 0 .. prefill_steps - 1

knee: up to there tokens are nearly free (`StepCost.knee`). due: steps of that size, the least that
do, read each prompt within `prefill_steps` steps of its coming. Unread are what is left of prompts
that are half read, and those that wait for nothing but room. A lone prompt is thus read in equal
parts. What is late is due at once: where more comes than can be read in time, or rows have run out,
the steps become as large as they may, and stay so to the end of what waits, since rows that stand
idle meanwhile would cost more than the smaller steps spare the others.
"""

from __future__ import annotations

from collections import deque

from engine.config import ScheduleConfig
from engine.stepcost import StepCost


class Pacing:
    """Asked for each step, and told of each what it read. page_tokens: P. Prompts get on by so much
    at least, however long decoding alone takes."""

    def __init__(self, schedule: ScheduleConfig, cost: StepCost, page_tokens: int) -> None:
        self._schedule = schedule
        self._cost = cost
        self._page_tokens = page_tokens
        # Tokens that came with each of the latest steps, the newest first.
        self._came = deque([0] * schedule.prefill_steps, schedule.prefill_steps)
        self._num_left = 0

    def num_tokens(self, num_decoding: int, num_read: int, num_unread: int) -> int:
        """Of prompts, in the next step, in which `num_decoding` rows decode and read `num_read`
        tokens of context. More than the `num_unread` of all prompts where that costs nothing."""
        # What has ended, or was found in the prefix cache, counts as read.
        self._came.appendleft(max(0, num_unread - self._num_left))
        self._num_left = num_unread
        most, cost = self._schedule.max_step_tokens, self._cost
        wanted = most
        if num_decoding:
            wanted = min(most, max(num_decoding + self._due(), cost.knee(most)))
        timely = cost.budget(self._schedule.max_step_s, most, num_read)
        least = cost.padded(num_decoding + self._page_tokens)
        total = max(least, min(timely, cost.padded(wanted)))
        return min(total, most) - num_decoding

    def took(self, num_tokens: int) -> None:
        """The step reads so many tokens of prompts."""
        self._num_left -= num_tokens

    def _due(self) -> int:
        """Taking it that what came first is read first."""
        due, unread = 0, self._num_left
        for age, came in enumerate(self._came):
            if unread <= 0:
                break
            due = max(due, -(-unread // (self._schedule.prefill_steps - age)))
            unread -= came
        return due
