"""A runner without a model: for measuring and testing everything around one.

A step takes `fake_step_s` and steps run one after another, as on a device. The token drawn at
position i of any sequence is `FIRST_TOKEN + i % NUM_TOKENS`, so that a reader can tell a lost or
doubled token, and never one of the request's stop tokens. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.device_memory import DeviceMemory
from engine.pass_costs import EXACT, PassCosts
from engine.plan import Span, StepPlan, StepResult

FIRST_TOKEN = 1000
NUM_TOKENS = 30000
KV_BYTES_PER_TOKEN = 1024


def counter_token(span: Span) -> int:
    """The token that follows `span`: its position's, or the next that isn't a stop token."""
    position = span.start + span.num_tokens
    token = FIRST_TOKEN + position % NUM_TOKENS
    while token in span.sequence.request.stop_token_ids:
        token += 1
    return token


@dataclass(slots=True)
class FakeLaunch:
    """plan is done at `end_s`; `started_s` is when the device began on it."""

    plan: StepPlan
    result: StepResult
    end_s: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def ready(self) -> bool:
        return self.clock() >= self.end_s

    def wait(self) -> StepResult:
        left = self.end_s - self.clock()
        if left > 0:
            self.sleep(left)
        return self.result


@dataclass(slots=True)
class FakeUpload:
    end_s: float
    clock: Callable[[], float]

    def done(self) -> bool:
        return self.clock() >= self.end_s


class FakeRunner:
    """Implements `plan.Runner`.

    clock, sleep  seconds; a test passes a virtual pair
    upload_s      how long an upload takes
    draw          the token that a sampling span draws
    passes        of the device that it stands for: each step takes what its pass costs
    """

    def __init__(
        self,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        upload_s: float = 0.0,
        draw: Callable[[Span], int] = counter_token,
        passes: PassCosts = EXACT,
    ) -> None:
        self.page_bytes = config.memory.page_tokens * KV_BYTES_PER_TOKEN
        self.num_pages = config.memory.num_pages(self.page_bytes)
        self.memory: DeviceMemory | None = None
        self.passes = passes
        self._step_s = config.model.fake_step_s
        self._clock = clock
        self._sleep = sleep
        self._upload_s = upload_s
        self._draw = draw
        self._busy_until_s = 0.0

    def launch(self, plan: StepPlan) -> FakeLaunch:
        start = max(self._clock(), self._busy_until_s)
        seconds = self.passes.seconds(plan.size) or self._step_s
        self._busy_until_s = start + seconds
        tokens = tuple((self._draw(s),) if s.samples else () for s in plan.spans)
        result = StepResult(plan, tokens, seconds, (False,) * len(plan.spans))
        return FakeLaunch(plan, result, self._busy_until_s, self._clock, self._sleep)

    def upload(self, host_offset: int, num_bytes: int, start_page: int) -> FakeUpload:
        return FakeUpload(self._clock() + self._upload_s, self._clock)

    def close(self) -> None:
        """Nothing to give back."""
