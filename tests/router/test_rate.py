"""A measured rate: over busy time, and honest when nothing has happened."""

from __future__ import annotations

import math

import pytest

from router.rate import Rate


def test_it_counts_over_the_busy_period() -> None:
    rate = Rate(window_s=30)
    rate.begin(100)
    for second in range(1, 11):
        rate.add(100 + second, 2)
    assert rate.per_second(110) == pytest.approx(2)
    assert rate.seconds_for(5, 110) == pytest.approx(2.5)


def test_it_forgets_what_is_older_than_the_window() -> None:
    rate = Rate(window_s=10)
    rate.begin(0)
    rate.add(1, 100)
    rate.add(15, 5)
    assert rate.per_second(20) == pytest.approx(0.5)


def test_without_events_it_is_at_most_one_in_the_time_waited() -> None:
    rate = Rate(window_s=30)
    rate.begin(0)
    assert rate.per_second(0) == math.inf
    assert rate.seconds_for(3, 0) == 0
    assert rate.seconds_for(1, 20) == pytest.approx(20)


def test_the_last_busy_period_is_the_first_guess_of_the_next() -> None:
    rate = Rate(window_s=30)
    rate.begin(0)
    rate.add(5, 5)
    rate.begin(1000)  # one a second until 5, then idle
    assert rate.per_second(1000) == pytest.approx(1)
    assert rate.per_second(1000.5) == pytest.approx(1)
    assert rate.per_second(1004) == pytest.approx(0.25)


def test_a_stall_within_a_busy_period_shows() -> None:
    rate = Rate(window_s=10)
    rate.begin(0)
    rate.add(5, 5)
    assert rate.seconds_for(1, 105) == pytest.approx(100)


def test_many_events_are_measured_over_the_time_that_is_kept() -> None:
    rate = Rate(window_s=1000)
    rate.begin(0)
    for i in range(1000):
        rate.add(i * 0.1)
    assert rate.per_second(100) == pytest.approx(10, rel=0.01)
