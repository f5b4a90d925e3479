"""Bounded labels: whoever has traffic has one, the rest share one, and no event is lost."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.telemetry.instrument import OTHER
from deployments.telemetry.instruments import TOKENS
from deployments.telemetry.ranking import Ranking
from deployments.telemetry.tally import Tally

RANK = "rank"
events = st.lists(st.sampled_from([*"abcdefgh", RANK]), max_size=120)


@settings(max_examples=100)
@given(events=events, top=st.integers(1, 4), cap=st.sampled_from([None, 0, 3]))
def test_every_event_counts_once_and_no_series_ever_falls(events, top, cap):
    """What a scraper sees: growth of each series, a series that comes back begins at 0 again."""
    ranking = Ranking(top, None if cap is None else top + cap)
    tally = Tally(lambda: 0)
    seen: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for event in events:
        if event == RANK:
            tally.forget("tenant", ranking.rank())
        else:
            tally.add(TOKENS, 1, ranking.see(event), "a", "prompt")
            counted[event] += 1
        ranking.check()
        now = labels_of(tally)
        for label in seen.keys() - now.keys():
            assert label != OTHER
            del seen[label]
        assert all(now[label] >= seen[label] for label in seen)
        grown = sum(now.values()) - sum(seen.values())
        assert grown == (event != RANK), "an event counts under one label, when it happens"
        assert len(now) <= 2 * top + 1
        seen = now
    assert sum(counted.values()) == sum(event != RANK for event in events)


def labels_of(tally: Tally) -> Counter[str]:
    return Counter(
        {
            point.attributes["tenant"]: point.value
            for metric in tally.read()
            for point in metric.data.data_points
        }
    )


def test_a_hundred_thousand_adapters_and_those_with_traffic_are_seen():
    rng = random.Random(5)
    ranking, tally = Ranking(10), Tally(lambda: 0)
    hot = [f"hot-{i}" for i in range(10)]
    total: Counter[str] = Counter()
    forgotten = 0.0
    for _ in range(3):
        for _ in range(40_000):
            name = rng.choice(hot) if rng.random() < 0.2 else f"cold-{rng.randrange(100_000)}"
            tally.add(TOKENS, 1, ranking.see(name), "a", "prompt")
            total[name] += 1
        before = labels_of(tally)
        tally.forget("tenant", ranking.rank())
        forgotten += before.total() - labels_of(tally).total()
    ranking.check()
    assert {ranking.label(name) for name in hot} == set(hot)
    series = labels_of(tally)
    assert series.total() + forgotten == 120_000
    assert len(series) <= 21
    for name in hot:  # the first ranking gave each its label
        assert series[name] >= 0.5 * total[name]


def test_who_leaves_keeps_its_series_until_the_ranking_after():
    ranking = Ranking(1)
    assert [ranking.see(name) for name in "aab"] == ["a", "a", OTHER]
    assert ranking.rank() == set()
    for _ in range(9):
        ranking.see("b")
    assert ranking.rank() == set() and ranking.see("a") == OTHER and ranking.see("b") == "b"
    assert ranking.rank() == {"a"}
    assert ranking.rank() == set()


def test_a_lead_is_needed_to_take_a_label_over():
    ranking = Ranking(1)
    for name in ["a"] * 10 + ["b"] * 14:
        ranking.see(name)
    ranking.rank()
    assert ranking.label("a") == "a"
    for _ in range(20):
        ranking.see("b")
    ranking.rank()
    assert ranking.label("b") == "b"


def test_the_least_popular_tenth():
    ranking = Ranking(3)
    assert not ranking.is_rare("t0")
    for tenant in range(20):
        for _ in range(1 + tenant):
            ranking.see(f"t{tenant}")
    assert not ranking.is_rare("t0")
    ranking.rank()
    rare = [tenant for tenant in range(20) if ranking.is_rare(f"t{tenant}")]
    assert rare == [0, 1] and ranking.is_rare("unheard-of")


def test_labels_ever_given_are_bounded():
    ranking = Ranking(2, max_ever=5)
    given: set[str] = set()
    for turn in range(50):
        names = (f"a{turn}", f"b{turn}")
        for name in names:
            for _ in range(turn + 1):
                ranking.see(name)
        ranking.rank()
        ranking.check()
        given |= {ranking.label(name) for name in names}
    assert given == {"a0", "b0", "a1", "b1", "b2", OTHER}
