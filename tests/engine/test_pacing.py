"""How many prompt tokens a step takes: spread while others decode, filled up to a pass, in time."""

from __future__ import annotations

import random
from collections import deque
from statistics import quantiles

from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig, MemoryConfig, ModelConfig, ScheduleConfig, StoreConfig
from engine.engine import build_engine
from engine.fake_runner import FakeRunner
from engine.pacing import Pacing
from engine.pass_costs import PassCosts, StepSize
from engine.stepcost import LineCost, StepCost, TableCost
from engine.types import Request, SamplingParams, Tenant
from tests.support.virtual import VirtualClock

PAGE = 16
SIZES = (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
# Those of an 8B model on one GPU, in milliseconds.
MIXED_MS = (5.2, 5.7, 6.6, 7.7, 9.2, 9.5, 11.4, 15.2, 17.1, 20.8, 27.0, 32.6, 41.0)
DECODE_MS = {1: 4.6, 16: 4.8, 64: 5.2, 128: 5.5, 256: 7.5}
PASSES = PassCosts(
    tuple((n, 1e-3 * ms) for n, ms in zip(SIZES, MIXED_MS, strict=True)),
    tuple((n, 1e-3 * ms) for n, ms in DECODE_MS.items()),
    38e-9,
    29e-9,
)
FULL = 1e9


def schedule(**fields: float) -> ScheduleConfig:
    return ScheduleConfig(max_seqs=256, **{"max_step_tokens": 2048, "max_step_s": FULL, **fields})


def line(fixed_s: float, token_s: float) -> StepCost:
    cost = LineCost()
    for n in (1, 64, 512):
        cost.observe(StepSize(n, 0, False), fixed_s + n * token_s)
    return cost


@given(st.data())
def test_a_step_keeps_its_bounds_and_leaves_no_padding_that_prompts_could_fill(data):
    steps = data.draw(st.integers(1, 12))
    max_step_s = data.draw(st.floats(0.001, 0.1))
    decoding, read = data.draw(st.integers(0, 256)), data.draw(st.integers(0, 100_000))
    backlog = data.draw(st.integers(0, 40_000))
    cost = TableCost(PASSES)
    config = schedule(prefill_steps=steps, max_step_s=max_step_s)
    num = Pacing(config, cost, PAGE).num_tokens(decoding, read, backlog)
    total = decoding + num
    assert PAGE <= num <= 2048 - decoding
    assert total in SIZES
    is_least = total == cost.padded(decoding + PAGE)
    assert is_least or cost.seconds(total, read) <= max_step_s * (1 + 1e-9)
    smaller = [n for n in SIZES if n < total]
    if smaller and decoding and not is_least:
        wanted = max(decoding + backlog / steps, cost.knee(2048))
        assert smaller[-1] < wanted, "a smaller pass would have done"


@given(
    decoding=st.integers(1, 256),
    backlogs=st.lists(st.integers(0, 40_000), min_size=2, max_size=2).map(sorted),
    costs=st.sampled_from([TableCost(PASSES), line(0.02, 0.003), line(0.005, 2e-5)]),
)
def test_more_that_waits_never_makes_a_step_smaller(decoding, backlogs, costs):
    pacing = Pacing(schedule(), costs, PAGE)
    few, many = (pacing.num_tokens(decoding, 0, backlog) for backlog in backlogs)
    assert few <= many
    assert pacing.num_tokens(decoding, 0, 2048 * 6) == 2048 - decoding


def test_a_lone_prompt_is_read_in_equal_parts_and_at_once_where_nobody_decodes():
    pacing = Pacing(schedule(prefill_steps=6), line(0.02, 0.003), PAGE)
    assert pacing.num_tokens(4, 0, 600) == 100
    assert pacing.num_tokens(0, 0, 600) == 2048


def test_tokens_that_are_nearly_free_are_always_taken():
    cost = TableCost(PASSES)
    assert cost.knee(2048) == 320
    assert Pacing(schedule(), cost, PAGE).num_tokens(50, 0, 300) == 320 - 50


class Service:
    """An engine on a device with those passes, and requests that come when they are due."""

    def __init__(self, **fields: float) -> None:
        self.clock = VirtualClock()
        config = EngineConfig(
            ModelConfig("", "fake", max_model_len=1296),
            MemoryConfig(256 << 20, 1 << 20, PAGE),
            StoreConfig("file:///nowhere", "/nowhere"),
            schedule(depth=1, prefix_cache=False, **fields),
        )
        runner = FakeRunner(config, self.clock, self.clock.sleep, passes=PASSES)
        self.engine = build_engine(config, runner, "base", self.clock)

    def serve(self, requests: list[Request], due_s: list[float]) -> list[float]:
        """Seconds between each two tokens of a request."""
        waiting = deque(zip(due_s, requests, strict=True))
        latest: dict[str, float] = {}
        gaps: list[float] = []
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
                    gaps.append(self.clock() - latest[part.request_id])
                latest[part.request_id] = self.clock()
                num_left -= part.finish is not None
        return gaps


def arrivals(num: int, per_s: float) -> tuple[list[Request], list[float]]:
    """Poisson; prompts U[32, 1024], answers U[32, 256]."""
    pick = random.Random(3)
    due, requests = 0.0, []
    times = []
    for i in range(num):
        due += pick.expovariate(per_s)
        prompt = (7,) * pick.randint(32, 1024)
        greedy = SamplingParams(temperature=0.0)
        requests.append(Request(str(i), Tenant("t"), None, prompt, pick.randint(32, 256), greedy))
        times.append(due)
    return requests, times


def percentiles(seconds: list[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=100)
    return cuts[49], cuts[98]


def test_at_moderate_load_hardly_a_step_takes_twice_as_long_as_most():
    requests, due = arrivals(60, 38.0)
    middle, slow = percentiles(Service().serve(requests, due))
    assert slow <= 2 * middle
    _, slow_unspread = percentiles(Service(prefill_steps=1).serve(requests, due))
    assert slow_unspread > 1.5 * slow


def test_a_backlog_that_outlasts_the_rows_is_read_in_the_largest_steps():
    service = Service()
    greedy = SamplingParams(temperature=0.0)
    requests = [Request(str(i), Tenant("t"), None, (7,) * 600, 2, greedy) for i in range(300)]
    service.serve(requests, [0.0] * 300)
    counters = service.engine.scheduler.counters
    assert counters.num_steps < 1.2 * 300 * 600 / 2048
    assert counters.busy_s == counters.base_s
