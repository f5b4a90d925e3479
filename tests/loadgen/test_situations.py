"""VTC's scenarios and the situations do what they are named for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from loadgen.workloads.arrival import Arrival, Schedule
from loadgen.workloads.catalogue import scenario


def built(name: str, **settings: str) -> Schedule:
    return scenario(name, settings).build(3)


def rate(schedule: Schedule, tenant: str, begin: float, end: float) -> float:
    times = [a.time_s for a in schedule.arrivals if a.tenant == tenant]
    return sum(begin <= t < end for t in times) / (end - begin)


@pytest.mark.parametrize(
    ("name", "minutes", "rates"),
    [
        ("vtc-overload", 6, [1.5, 3]),
        ("vtc-overload-8", 6, [0.4] * 3 + [0.6] * 5),
        ("vtc-weighted", 6, [0.8, 0.8, 1.2, 1.6]),
        ("vtc-proportional", 10, [0.25, 0.5, 1.5]),
    ],
)
def test_steady_clients(name: str, minutes: int, rates: list[float]) -> None:
    schedule = built(name)
    assert schedule.duration_s == 60 * minutes
    for client, wanted in enumerate(rates):
        tenant = f"t{client:03}"
        assert rate(schedule, tenant, 0, 60 * minutes) == pytest.approx(wanted, abs=0.01)
        times = [a.time_s for a in schedule.arrivals if a.tenant == tenant]
        assert np.diff(times) == pytest.approx(1 / wanted, abs=2e-6)
    assert {(a.input_tokens, a.output_tokens) for a in schedule.arrivals} == {(256, 256)}
    assert schedule.adapters.keys() == {f"t{i:03}" for i in range(len(rates))}


def test_weights_are_told() -> None:
    assert built("vtc-weighted").weights == {"t000": 1, "t001": 2, "t002": 3, "t003": 4}


def test_on_and_off() -> None:
    schedule = built("vtc-on-off")
    for begin in range(0, 600, 60):
        there = begin // 60 % 2 == 0
        assert rate(schedule, "t000", begin, begin + 60) == pytest.approx(0.5 * there, abs=0.04)
        assert rate(schedule, "t001", begin, begin + 60) == pytest.approx(2, abs=0.1)


def test_ramp() -> None:
    schedule = built("vtc-ramp")
    assert rate(schedule, "t001", 0, 60) == pytest.approx(0.29, abs=0.05)
    assert rate(schedule, "t001", 540, 600) == pytest.approx(1.91, abs=0.1)
    assert rate(schedule, "t000", 0, 600) == pytest.approx(0.5, abs=0.01)


def test_shift() -> None:
    schedule = built("vtc-shift")
    assert rate(schedule, "t000", 0, 60) == pytest.approx(0.5, abs=0.04)
    assert rate(schedule, "t000", 60, 120) == 0
    assert rate(schedule, "t000", 300, 600) == pytest.approx(1, abs=0.02)
    assert rate(schedule, "t001", 300, 600) == pytest.approx(1, abs=0.02)
    assert rate(schedule, "t000", 600, 900) == pytest.approx(0.5, abs=0.02)
    assert rate(schedule, "t001", 600, 900) == pytest.approx(1.5, abs=0.02)


def test_a_flash_crowd_comes_for_a_new_adapter() -> None:
    schedule = built("flash-crowd")
    new = "a0050"
    times = [a.time_s for a in schedule.arrivals if a.adapter == new]
    assert 100 <= min(times) < 105 and 145 < max(times) < 150
    assert len(times) / 50 == pytest.approx(0.4 * 19, rel=0.1)
    assert {a.tenant for a in schedule.arrivals if a.adapter == new} == {"t000"}


def test_a_noisy_neighbour_in_the_middle_third() -> None:
    schedule = built("noisy-neighbour")
    assert rate(schedule, "t000", 0, 60) == rate(schedule, "t000", 120, 180) == 0
    assert rate(schedule, "t000", 60, 120) == pytest.approx(10, rel=0.1)
    quiet = [a for a in schedule.arrivals if a.tenant != "t000"]
    assert max(a.input_tokens for a in quiet) < 64
    assert len(quiet) / 180 == pytest.approx(1.5, rel=0.15)


def test_a_cold_start_asks_for_each_adapter_once() -> None:
    schedule = built("cold-start")
    cold = [a for a in schedule.arrivals if a.adapter != "a0000"]
    moments = Counter((a.adapter, a.time_s) for a in cold)
    assert len(moments) == 60 and set(moments.values()) == {3}


def test_a_campaign_goes_on_where_it_was() -> None:
    schedule = built("campaign")
    sessions: dict[str, list[Arrival]] = {}
    for arrival in schedule.arrivals:
        if arrival.session:
            sessions.setdefault(arrival.session, []).append(arrival)
    assert len(sessions) > 50
    first = [turns[0].time_s for turns in sessions.values()]
    assert min(first) > 75 and max(first) < 225
    for turns in sessions.values():
        assert [a.input_tokens for a in turns] == [64, 128, 192, 256]
