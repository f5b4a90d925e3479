"""The size of the fleet from slot pressure and queue time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve.config import AutoscalingPolicy

from router.autoscaling import FleetLoad, SlotPressurePolicy


@dataclass
class Context:
    """The part of Ray's context that the policy reads."""

    current_num_replicas: int = 2
    target_num_replicas: int = 2
    aggregated_metrics: dict[str, dict[str, float]] | None = field(default_factory=dict)


def metrics(*replicas: tuple[float, float, float, float]) -> dict[str, dict[str, float]]:
    """(running, waiting, rows, queue_s) of each."""
    names = ("running", "waiting", "rows", "queue_s")
    return {
        name: {f"r{i}": replica[column] for i, replica in enumerate(replicas)}
        for column, name in enumerate(names)
    }


def desired(ctx: Context, **kwargs: float) -> float:
    num, state = SlotPressurePolicy(**kwargs)(ctx)
    assert state == {}
    return num


def test_rows_at_their_target_keep_the_fleet() -> None:
    ctx = Context(2, 2, metrics((24, 0, 32, 0), (20, 7.2, 32, 0)))
    assert desired(ctx) == pytest.approx(2)


def test_waiting_sequences_count_as_pressure() -> None:
    ctx = Context(2, 2, metrics((32, 16, 32, 0), (32, 0, 32, 0)))
    assert desired(ctx) == pytest.approx(2 * (40 / 32) / 0.8)


def test_an_idle_fleet_may_shrink() -> None:
    assert desired(Context(4, 4, metrics(*[(2, 0, 32, 0.2)] * 4))) == pytest.approx(4 * 0.078125)


def test_long_queues_grow_the_fleet_though_rows_are_free() -> None:
    """Memory, not rows, can be what is short."""
    ctx = Context(4, 4, metrics(*[(8, 4, 32, 0.75)] * 4))
    assert desired(ctx, target_queue_s=0.5) == pytest.approx(6)


def test_one_decision_grows_by_a_bounded_factor() -> None:
    ctx = Context(3, 3, metrics(*[(32, 900, 32, 60.0)] * 3))
    assert desired(ctx, max_growth=2) == pytest.approx(6)


def test_replicas_that_do_not_report_count_as_like_the_others() -> None:
    ctx = Context(4, 4, metrics((32, 6.4, 32, 0.1)))
    assert desired(ctx) == pytest.approx(6)


@pytest.mark.parametrize("nothing", [None, {}, {"rows": {}}, {"rows": {"r0": 0.0}}])
def test_without_reports_the_target_stays(nothing) -> None:
    assert desired(Context(2, 3, nothing)) == 3


def test_replicas_still_starting_are_not_taken_back() -> None:
    ctx = Context(1, 4, metrics((32, 10, 32, 2.0)))
    assert desired(ctx) == 4


@given(
    num=st.integers(1, 50),
    waiting=st.floats(0, 1000),
    more=st.floats(0, 1000),
    queue_s=st.floats(0, 100),
)
def test_more_demand_never_asks_for_fewer(
    num: int, waiting: float, more: float, queue_s: float
) -> None:
    policy = SlotPressurePolicy()
    less = policy.desired(FleetLoad(num, waiting, 32, queue_s), num)
    assert 0 <= less <= policy.desired(FleetLoad(num, waiting + more, 32, queue_s), num) <= 2 * num


@pytest.mark.parametrize(
    "wrong",
    [{"target_occupancy": 0}, {"target_occupancy": 1.5}, {"target_queue_s": 0}, {"max_growth": 1}],
)
def test_values_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="target_occupancy"):
        SlotPressurePolicy(**wrong)


def test_ray_takes_the_policy_by_its_name_and_arguments() -> None:
    policy = AutoscalingPolicy(
        policy_function="router.autoscaling:SlotPressurePolicy",
        policy_kwargs={"target_occupancy": 0.5},
    )
    decide = policy.get_policy()(**policy.policy_kwargs)
    assert decide(Context(2, 2, metrics((16, 0, 32, 0), (32, 0, 32, 0))))[0] == pytest.approx(3)
