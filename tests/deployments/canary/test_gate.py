"""The canary gate's decision: what is worse is found, what is noise is let be."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.canary.gate import GateSection, State, decide, excess, quantile_bounds, wilson
from deployments.canary.trial_counts import MAX_CODES, OTHER, Side, Sides, Times, in_words

GATE = GateSection()
Z = 3.0902  # of 0.999, one-sided


def side(answered: int, failed: int = 0, *, first_s: float = 0.1, token_s: float = 0.01) -> Side:
    """Times spread by some 20 % about their middle."""
    made = Side(answered, Counter({"not_finite": failed} if failed else {}))
    for number in range(answered):
        spread = 0.9 + 0.2 * number / answered
        made.first.add(first_s * spread)
        made.token.add(token_s * spread)
    return made


def tailed(answered: int, tail_s: float) -> Side:
    """As any other, but that the first text of a fifth of the requests takes `tail_s`."""
    made = side(answered * 4 // 5)
    for _ in range(answered - made.answered):
        made.first.add(tail_s)
    made.answered = answered
    return made


@pytest.mark.parametrize(
    ("canary", "production", "state", "words"),
    [
        (side(199), side(10_000), State.WAITING, "the canary 199"),
        (side(10_000), side(199), State.WAITING, "production 199"),
        (side(0, 150), side(200), State.WAITING, "the canary 150"),
        (side(200), side(200), State.HOLDING, "no worse"),
        (side(0, 200), side(200), State.WORSE, "200 of its 200 requests failed (not_finite 200)"),
        (side(180, 20), side(200), State.WORSE, "2.0% are allowed"),
        (side(196, 4), side(200), State.HOLDING, "no worse"),
        (side(180, 20), side(180, 20), State.HOLDING, "no worse"),
        (side(9700, 300), side(9900, 100), State.HOLDING, "no worse"),  # 2 % more: the margin
        (side(9500, 500), side(9900, 100), State.WORSE, "5"),
        (side(200), side(100, 100), State.HOLDING, "no worse"),
        (side(300, first_s=0.2), side(300), State.WORSE, "time to the first text at p50"),
        (side(300, first_s=0.2), tailed(300, 0.5), State.WORSE, "time to the first text at p50"),
        (tailed(300, 0.5), side(300), State.WORSE, "time to the first text at p90"),
        (side(300, first_s=0.14), side(300), State.HOLDING, "no worse"),
        (side(300, token_s=0.02), side(300), State.WORSE, "time of a token at p50"),
        (side(300), side(300, first_s=5, token_s=1), State.HOLDING, "no worse"),
    ],
)
def test_verdicts(canary: Side, production: Side, state: State, words: str) -> None:
    verdict = decide(Sides(canary, production), GATE)
    assert verdict.state is state, verdict
    assert words in verdict.why


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.01237, "12.4 ms"), (0.9996, "1 s"), (35.5, "35.5 s"), (999.7, "1,000 s")],
)
def test_times_are_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_times_that_too_few_requests_have_decide_nothing() -> None:
    """Answers of one token have no time of a token, and while a version loads none is counted."""
    canary, production = side(150, first_s=9, token_s=9), side(300)
    canary.answered += 100
    assert decide(Sides(canary, production), GATE).state is State.HOLDING


def test_wilson_and_newcombe_are_the_published_ones() -> None:
    """Newcombe's example (1998, table II, a): 56 of 70 and 48 of 80 at 95 %, two-sided."""
    z = 1.959964
    assert wilson(56, 70, z) == pytest.approx((0.6918, 0.8769), abs=2e-4)
    assert excess(56, 70, 48, 80, z) == pytest.approx(0.0524, abs=1e-4)


@given(st.integers(1, 3000), st.data(), st.floats(0.0, 5.0))
def test_bounds_of_a_share(num: int, data: st.DataObject, z: float) -> None:
    failed = data.draw(st.integers(0, num))
    low, high = wilson(failed, num, z)
    assert 0 <= low <= failed / num + 1e-12 and failed / num - 1e-12 <= high <= 1
    assert excess(failed, num, failed, num, z) <= 1e-12


@given(
    st.lists(st.floats(1e-3, 100.0), min_size=1, max_size=400),
    st.floats(0.05, 0.95),
    st.floats(0.0, 4.0),
)
def test_bounds_of_a_quantile(seconds: list[float], q: float, z: float) -> None:
    """Those of the sorted list, up to the width of a bin."""
    times = Times()
    for s in seconds:
        times.add(s)
    low, high = quantile_bounds(times, q, z)
    ordered = sorted(seconds)
    found = ordered[math.ceil(q * len(ordered)) - 1]
    assert low <= found * 1.05 and high >= found / 1.05
    for rank in (1, len(ordered)):
        assert times.at(rank) == pytest.approx(ordered[rank - 1], rel=0.05)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_more_failures_never_save_a_canary(good: int, bad: int, well: int, ill: int) -> None:
    before = decide(Sides(side(good, bad), side(well, ill)), GATE).state
    after = decide(Sides(side(good, bad + 50), side(well, ill)), GATE).state
    assert before is not State.WORSE or after is State.WORSE


def test_noise_rolls_nothing_back() -> None:
    """A hundred canaries as good as production, each looked at fifty times on its way to 2,000
    requests, at an error rate and a spread of times that are far from quiet."""
    draw = random.Random(7)
    for _ in range(100):
        sides = Sides()
        for _ in range(50):
            for one in sides:
                failed = sum(draw.random() < 0.05 for _ in range(40))
                one.answered += 40 - failed
                one.errors["timeout"] += failed
                for _ in range(5):
                    one.first.add(draw.lognormvariate(-2.0, 1.0))
                    one.token.add(draw.lognormvariate(-4.0, 0.5))
            verdict = decide(sides, GATE)
            assert verdict.state is not State.WORSE, verdict


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_what_is_worse_is_found_soon(rate: float) -> None:
    """A version that fails a tenth of its requests is out within 1,000."""
    draw = random.Random(3)
    for _ in range(50):
        sides, num = Sides(), 0
        while decide(sides, GATE).state is not State.WORSE:
            num += 20
            assert num <= 1000
            failed = sum(draw.random() < rate for _ in range(20))
            sides.canary.answered += 20 - failed
            sides.canary.errors["core_lost"] += failed
            sides.production.answered += 20


def test_counts_travel_and_add_up() -> None:
    parts = [Sides(side(3, 1), side(5)), Sides(side(2, 2), side(7, 1, first_s=400_000))]
    told = [Sides.from_wire(part.to_wire()) for part in parts]
    assert told == parts
    whole = Sides.total(told)
    assert (whole.canary.requests, whole.canary.failed) == (8, 3)
    assert whole.production.errors == Counter(not_finite=1)
    assert len(whole.production.first) == 12
    assert whole.production.first.at(12) > 1000  # as long as it can tell


def test_kinds_of_errors_are_bounded() -> None:
    one = Side()
    for number in range(50):
        one.fail(f"code_{number}")
    assert one.failed == 50 and len(one.errors) == MAX_CODES + 1
    assert one.errors[OTHER] == 50 - MAX_CODES
