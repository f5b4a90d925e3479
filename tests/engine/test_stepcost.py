"""The measured cost of a step and the budget that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stepcost import StepCost


def test_before_the_first_step_nothing_is_limited() -> None:
    cost = StepCost()
    assert cost.line() == (0.0, 0.0)
    assert cost.budget(0.01, 512) == 512


def test_one_size_alone_puts_all_of_the_cost_on_the_tokens() -> None:
    cost = StepCost()
    for _ in range(5):
        cost.observe(4, 0.02)
    assert cost.line() == (0.0, pytest.approx(0.005))
    assert cost.budget(0.1, 512) == 20


@given(
    fixed=st.floats(0.0, 0.1),
    per_token=st.floats(1e-5, 0.01),
    sizes=st.lists(st.integers(1, 512), min_size=2, max_size=50).filter(lambda x: len(set(x)) > 1),
)
def test_a_linear_cost_is_found(fixed: float, per_token: float, sizes: list[int]) -> None:
    cost = StepCost(fade=0.999)
    for size in [*sizes, 1, 512]:
        cost.observe(size, fixed + per_token * size)
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
    cost = StepCost()
    for size, seconds in steps:
        cost.observe(size, seconds)
    fixed, per_token = cost.line()
    assert fixed >= -1e-9 and per_token >= 0
    budget = cost.budget(max_step_s, 512)
    assert 0 <= budget <= 512
    if budget:
        assert cost.seconds(budget) <= max_step_s * (1 + 1e-6) + 1e-9
    if budget < 512:
        assert cost.seconds(budget + 1) >= max_step_s * (1 - 1e-6) - 1e-9


def test_old_steps_fade() -> None:
    cost = StepCost(fade=0.9)
    for i in range(100):
        cost.observe(1 + i % 50, 0.01 + 0.001 * (1 + i % 50))
    for i in range(200):
        cost.observe(1 + i % 50, 0.02 + 0.002 * (1 + i % 50))
    assert cost.line() == (pytest.approx(0.02, rel=1e-3), pytest.approx(0.002, rel=1e-3))
