"""Steps under load, on a device with an 8B model's passes and a virtual clock: steady below
saturation, as large as they may be above it."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from statistics import quantiles

import pytest

from engine.config import EngineConfig, MemoryConfig, ModelConfig, ScheduleConfig, StoreConfig
from engine.engine import build_engine
from engine.fake_runner import FakeRunner
from engine.pass_costs import StepSize
from engine.types import Request, SamplingParams, Tenant
from tests.support.passes import PASSES
from tests.support.virtual import VirtualClock

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Served:
    """seconds: of the whole run; first_s: from a request's coming to its first token; gaps_s:
    between each two tokens of a request."""

    seconds: float = 0.0
    num_tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds


class Service:
    """An engine on a device with those passes, and requests that come when they are due."""

    def __init__(self, **fields: float) -> None:
        self.clock = VirtualClock()
        config = EngineConfig(
            ModelConfig("", "fake", max_model_len=9000),
            MemoryConfig(1 << 30, 1 << 20, 16),
            StoreConfig("file:///nowhere", "/nowhere"),
            ScheduleConfig(
                **{"max_seqs": 256, "max_step_tokens": 2048, "max_step_s": 0.06, **fields},
                depth=1,
                prefix_cache=False,
            ),
            measures=False,
        )
        runner = FakeRunner(config, self.clock, self.clock.sleep, passes=PASSES)
        self.engine = build_engine(config, runner, "base", self.clock)

    def serve(self, requests: list[Request], due_s: list[float]) -> Served:
        due_of = {request.id: due for request, due in zip(requests, due_s, strict=True)}
        waiting = deque(zip(due_s, requests, strict=True))
        latest: dict[str, float] = {}
        served = Served()
        num_left = len(requests)
        while num_left:
            while waiting and waiting[0][0] <= self.clock():
                self.engine.submit(waiting.popleft()[1])
            output = self.engine.step()
            if output is None:
                self.clock.now = max(self.clock.now, waiting[0][0])
                continue
            for part in output.sequences:
                assert part.error is None
                if part.request_id in latest:
                    served.gaps_s.append(self.clock() - latest[part.request_id])
                else:
                    served.first_s.append(self.clock() - due_of[part.request_id])
                latest[part.request_id] = self.clock()
                served.num_tokens += len(part.tokens)
                num_left -= part.finish is not None
        served.seconds = self.clock()
        return served


def alike(num: int, num_input: int, num_output: int) -> list[Request]:
    return [
        Request(str(i), Tenant("t"), None, (7,) * num_input, num_output, GREEDY) for i in range(num)
    ]


def at_once(requests: list[Request], **fields: float) -> Served:
    return Service(**fields).serve(requests, [0.0] * len(requests))


def mixed(num: int, seed: int) -> list[Request]:
    """Prompts U[32, 1024], answers U[32, 256]."""
    pick = random.Random(seed)
    return [
        Request(str(i), Tenant("t"), None, (7,) * pick.randint(32, 1024), pick.randint(32, 256))
        for i in range(num)
    ]


@cache
def capacity() -> float:
    """Such requests a second, when all come at once."""
    return 512 / at_once(mixed(512, 1)).seconds


def poisson(load: float, seconds: float, **fields: float) -> Served:
    """Such requests, at that part of the capacity."""
    pick, due = random.Random(3), [0.0]
    while due[-1] < seconds:
        due.append(due[-1] + pick.expovariate(load * capacity()))
    return Service(**fields).serve(mixed(len(due), 2), due)


def percentiles(seconds: list[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=100)
    return cuts[49], cuts[98]


def test_at_high_load_hardly_a_step_takes_twice_as_long_as_most():
    spread, unspread = poisson(0.8, 20.0), poisson(0.8, 20.0, prefill_steps=1)
    middle, slow = percentiles(spread.gaps_s)
    assert slow <= 1.9 * middle
    assert percentiles(unspread.gaps_s)[1] > 1.5 * slow
    # A step more or so for each of the six.
    assert percentiles(spread.first_s)[1] <= percentiles(unspread.first_s)[1] + 6 * slow


@pytest.mark.parametrize(
    "shape", [(512, 128, 128), (256, 128, 128), (600, 128, 64), (100, 512, 64)]
)
def test_what_comes_all_at_once_is_served_as_fast_as_by_the_largest_steps(shape):
    requests = alike(*shape)
    spread, unspread = at_once(requests), at_once(requests, prefill_steps=1)
    assert spread.rate >= 0.99 * unspread.rate


def test_a_saturated_engine_takes_no_longer_than_its_prompts_and_full_decode_steps_do():
    num, rows, length = 512, 256, 128
    served = at_once(alike(num, length, length), max_seqs=rows)
    reading_s = num * length / 2048 * PASSES.seconds(StepSize(2048, 0, False))
    at_most = StepSize(rows, rows * 2 * length, True)
    decoding_s = num / rows * (length - 1) * PASSES.seconds(at_most)
    assert served.seconds <= reading_s + decoding_s


def test_a_long_prompt_makes_no_step_larger_than_its_part():
    rows, length = 50, 8192
    long = Request("long", Tenant("t"), None, (7,) * length, 4, GREEDY)
    served = Service().serve([*alike(rows, 64, 200), long], [0.0] * rows + [0.5])
    part = PASSES.padded(rows + -(-length // 6))
    context = rows * 264 + length
    assert max(served.gaps_s) <= PASSES.seconds(StepSize(part, context, False))


def test_a_backlog_that_outlasts_the_rows_is_read_in_the_largest_steps():
    service = Service()
    service.serve(alike(300, 600, 2), [0.0] * 300)
    counters = service.engine.scheduler.counters
    assert counters.num_steps < 1.2 * 300 * 600 / 2048
    assert counters.busy_s == counters.base_s
