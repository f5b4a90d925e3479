"""How many prompt tokens a step takes: spread while others decode, filled up to a pass, in time."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from engine.config import ScheduleConfig
from engine.pacing import Pacing
from engine.pass_costs import StepSize
from engine.stepcost import LineCost, StepCost, TableCost
from tests.support.passes import PASSES, SIZES

PAGE = 16
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
    unread = data.draw(st.integers(0, 40_000))
    cost = TableCost(PASSES)
    config = schedule(prefill_steps=steps, max_step_s=max_step_s)
    num = Pacing(config, cost, PAGE).num_tokens(decoding, read, unread)
    total = decoding + num
    assert PAGE <= num <= 2048 - decoding
    assert total in SIZES
    is_least = total == cost.padded(decoding + PAGE)
    assert is_least or cost.seconds(total, read) <= max_step_s * (1 + 1e-9)
    smaller = [n for n in SIZES if n < total]
    if smaller and decoding and not is_least:
        wanted = max(decoding + unread / steps, cost.knee(2048))
        assert smaller[-1] < wanted, "a smaller pass would have done"


@given(
    decoding=st.integers(1, 256),
    unread=st.lists(st.integers(0, 40_000), min_size=2, max_size=2).map(sorted),
    costs=st.sampled_from([TableCost(PASSES), line(0.02, 0.003), line(0.005, 2e-5)]),
)
def test_more_that_waits_never_makes_a_step_smaller(decoding, unread, costs):
    few, many, most = (
        Pacing(schedule(), costs, PAGE).num_tokens(decoding, 0, num) for num in (*unread, 2048 * 6)
    )
    assert few <= many
    assert most == 2048 - decoding


def exact(steps: int) -> Pacing:
    """Of a device on which no token is free, so that it takes what is due and no more."""
    return Pacing(schedule(prefill_steps=steps, max_step_tokens=10**6), line(0.0, 0.001), 1)


@given(
    steps=st.integers(1, 9),
    came=st.lists(st.integers(0, 3000), min_size=1, max_size=40),
)
def test_each_prompt_is_read_within_so_many_steps_and_no_step_is_larger_than_that_asks(steps, came):
    pacing, total, sizes = exact(steps), 0, []
    for i, num in enumerate(came + [0] * steps):
        total += num
        size = min(pacing.num_tokens(1, 0, total - sum(sizes)), total - sum(sizes))
        pacing.took(size)
        sizes.append(size)
        assert sum(sizes) >= sum(came[: max(0, i + 2 - steps)]), "late"
    # Whatever came in steps i .. j must be read in steps i .. j + steps - 1: the least that the
    # largest step can be, had all been known beforehand. Reading without knowing what comes next,
    # at the least rate that does, needs at most e times as much (Bansal, Kimbrel, Pruhs 2007).
    needed = max(
        sum(came[i : j + 1]) / (j - i + steps)
        for i in range(len(came))
        for j in range(i, len(came))
    )
    assert max(sizes) <= math.e * needed + 1


def test_what_is_late_is_due_at_once_and_what_comes_later_still_has_its_time():
    pacing = exact(4)
    assert pacing.num_tokens(1, 0, 400) == 100
    for _ in range(4):  # rows have run out
        pacing.took(0)
        pacing.num_tokens(1, 0, 400)
    pacing.took(0)
    assert pacing.num_tokens(1, 0, 1000) == 400
    pacing.took(400)
    assert pacing.num_tokens(1, 0, 600) == 200


def test_what_ends_unread_leaves_the_others_their_time():
    pacing = exact(4)
    pacing.num_tokens(1, 0, 900)
    pacing.took(225)
    assert pacing.num_tokens(1, 0, 300 + 100) == 400 // 3 + 1, "of 675 are 375 gone, 100 came"


def test_a_lone_prompt_is_read_in_equal_parts_and_at_once_where_nobody_decodes():
    pacing = Pacing(schedule(prefill_steps=6), line(0.02, 0.003), PAGE)
    assert pacing.num_tokens(4, 0, 600) == 100
    assert pacing.num_tokens(0, 0, 600) == 2048


def test_tokens_that_are_nearly_free_are_always_taken():
    cost = TableCost(PASSES)
    assert cost.knee(2048) == 320
    assert Pacing(schedule(), cost, PAGE).num_tokens(50, 0, 300) == 320 - 50
