"""The measured cost of a step and the budget that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.pass_costs import PassCosts, StepSize
from engine.stepcost import KNEE, LineCost, TableCost, step_cost

SIZES = (64, 128, 256, 512)
PASSES = PassCosts(
    mixed=tuple(zip(SIZES, (0.005, 0.006, 0.009, 0.016), strict=True)),
    decode=((1, 0.004), (16, 0.0045)),
    mixed_read_s=1e-6,
    decode_read_s=5e-7,
)


def tokens(num: int, num_read: int = 0) -> StepSize:
    return StepSize(num, num_read, False)


def test_before_the_first_step_nothing_is_limited() -> None:
    cost = LineCost()
    assert cost.line() == (0.0, 0.0)
    assert cost.budget(0.01, 512) == 512


def test_one_size_alone_puts_all_of_the_cost_on_the_tokens() -> None:
    cost = LineCost()
    for _ in range(5):
        cost.observe(tokens(4), 0.02)
    assert cost.line() == (0.0, pytest.approx(0.005))
    assert cost.budget(0.1, 512) == 20


@given(
    fixed=st.floats(0.0, 0.1),
    per_token=st.floats(1e-5, 0.01),
    sizes=st.lists(st.integers(1, 512), min_size=2, max_size=50).filter(lambda x: len(set(x)) > 1),
)
def test_a_linear_cost_is_found(fixed: float, per_token: float, sizes: list[int]) -> None:
    cost = LineCost(fade=0.999)
    for size in [*sizes, 1, 512]:
        cost.observe(tokens(size), fixed + per_token * size)
    found = cost.line()
    assert found[0] == pytest.approx(fixed, abs=1e-3 * (fixed + per_token))
    assert found[1] == pytest.approx(per_token, rel=1e-3)


@given(
    steps=st.lists(st.tuples(st.integers(-1, 600), st.floats(-1.0, 10.0)), max_size=60),
    max_step_s=st.floats(1e-4, 1.0),
)
def test_whatever_is_measured_the_budget_keeps_its_word(
    steps: list[tuple[int, float]], max_step_s: float
) -> None:
    cost = LineCost()
    for size, seconds in steps:
        cost.observe(tokens(size), seconds)
    fixed, per_token = cost.line()
    assert fixed >= -1e-9 and per_token >= 0
    budget = cost.budget(max_step_s, 512)
    assert 0 <= budget <= 512
    if budget:
        assert cost.seconds(budget) <= max_step_s * (1 + 1e-6) + 1e-9
    if budget < 512:
        assert cost.seconds(budget + 1) >= max_step_s * (1 - 1e-6) - 1e-9


def test_old_steps_fade() -> None:
    cost = LineCost(fade=0.9)
    for i in range(100):
        cost.observe(tokens(1 + i % 50), 0.01 + 0.001 * (1 + i % 50))
    for i in range(200):
        cost.observe(tokens(1 + i % 50), 0.02 + 0.002 * (1 + i % 50))
    assert cost.line() == (pytest.approx(0.02, rel=1e-3), pytest.approx(0.002, rel=1e-3))


def test_a_step_costs_what_the_pass_does_that_it_is_padded_to() -> None:
    assert PASSES.seconds(tokens(65)) == PASSES.seconds(tokens(128)) == 0.006
    assert PASSES.seconds(tokens(65, 1000)) == pytest.approx(0.007)
    assert PASSES.seconds(StepSize(2, 1000, True)) == pytest.approx(0.005)
    assert PASSES.seconds(tokens(10_000)) == 0.016
    assert PASSES.seconds(tokens(0)) == 0
    assert [PASSES.padded(n) for n in (1, 64, 65, 512, 600)] == [64, 64, 128, 512, 600]


def test_a_device_that_pads_nothing_has_a_line_and_no_estimate_without_adapters() -> None:
    cost = step_cost(PassCosts())
    assert isinstance(cost, LineCost)
    cost.observe(tokens(5), 0.01)
    assert cost.base_s(tokens(5)) == 0
    assert cost.padded(77) == 77


def test_a_line_s_knee_is_where_a_step_costs_so_much_more_than_an_empty_one() -> None:
    cost = LineCost()
    assert cost.knee(512) == 512, "nothing is known yet"
    for size in (1, 100, 200):
        cost.observe(tokens(size), 0.01 + 0.0001 * size)
    assert cost.knee(512) == pytest.approx(100 * (KNEE - 1), abs=1)
    assert cost.knee(50) == 50


@given(
    max_step_s=st.floats(1e-4, 0.05),
    num_read=st.integers(0, 20_000),
    slower=st.floats(0.5, 3.0),
)
def test_a_table_s_budget_is_the_largest_pass_that_keeps_the_time(
    max_step_s: float, num_read: int, slower: float
) -> None:
    cost = TableCost(PASSES)
    for size in (64, 300, 128):
        cost.observe(tokens(size, 100), slower * PASSES.seconds(tokens(size, 100)))
    assert cost.ratio == pytest.approx(slower)
    budget = cost.budget(max_step_s, 512, num_read)
    assert budget in (0, *SIZES)
    if budget:
        assert cost.seconds(budget, num_read) <= max_step_s * (1 + 1e-9)
    if budget < 512:
        assert cost.seconds(budget + 1, num_read) >= max_step_s * (1 - 1e-9)
    assert cost.budget(max_step_s, 100, num_read) == min(100, budget)


def test_a_table_s_knee_is_the_largest_pass_that_costs_little_more_than_the_smallest() -> None:
    cost = TableCost(PASSES)
    assert cost.knee(512) == 256
    assert cost.knee(200) == 200
    assert cost.token_s == pytest.approx(0.016 / 512)


def test_decode_steps_say_nothing_of_steps_with_prompts() -> None:
    cost = TableCost(PASSES)
    cost.observe(StepSize(16, 100, True), 1.0)
    cost.observe(tokens(0), 1.0)
    assert cost.ratio == 1
