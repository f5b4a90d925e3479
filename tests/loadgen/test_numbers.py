"""What a report computes, against plain counting."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.outcome import Outcome
from loadgen.client.run import Sample
from loadgen.report.groups import by_decile, by_tenant, deciles, least_popular_tenants
from loadgen.report.server import read_server
from loadgen.report.slo import Slo
from loadgen.report.stats import MAX_POINTS, Quantiles, cdf, jain
from loadgen.report.timeline import timeline
from loadgen.report.words import number, part, seconds


def answer(
    tenant: str = "t",
    adapter: str = "a",
    due_s: float = 0.0,
    chunk_s: Sequence[float] = (0.5, 0.6, 0.8),
    status: str = "ok",
    tokens: int | None = None,
) -> Outcome:
    chunks = tuple(chunk_s)
    return Outcome(
        index=0, due_s=due_s, tenant=tenant, adapter=adapter, status=status, lag_s=0.0,
        end_s=chunks[-1] if chunks else 0.1, first_s=chunks[0] if chunks else None,
        prompt_tokens=10, completion_tokens=len(chunks) if tokens is None else tokens,
        chunk_s=chunks, chunk_chars=(4,) * len(chunks),
    )  # fmt: skip


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=60))
def test_quantiles_are_linear_between_neighbours(values: list[float]) -> None:
    found = Quantiles.of(values)
    assert found is not None and found.count == len(values)
    ordered = sorted(values)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        place = q * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        wanted = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
        assert getattr(found, name) == pytest.approx(wanted)
    assert found.max == max(values) and found.mean == pytest.approx(sum(values) / len(values))


def test_no_values_have_no_quantiles() -> None:
    assert Quantiles.of([]) is None


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30))
def test_jain_lies_between_one_nth_and_one(values: list[float]) -> None:
    index = jain(values)
    if index is None:
        assert max(values) < 1e-100
    else:
        assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9


def test_jain_s_ends() -> None:
    assert jain([7.0] * 5) == pytest.approx(1)
    assert jain([0, 0, 3.0]) == pytest.approx(1 / 3)
    assert jain([2.0, 1.0]) == pytest.approx(0.9)
    assert jain([0.0]) is None


def test_a_long_cdf_is_thinned_and_keeps_its_tail() -> None:
    drawn = random.Random(1)
    values = [drawn.random() ** 4 for _ in range(20000)]
    known, parts = cdf(values)
    assert len(known) <= MAX_POINTS + 2
    assert known[-1] == max(values) and parts[-1] == 1
    ordered = np.sort(values)
    for value, share in zip(known, parts, strict=True):
        assert np.searchsorted(ordered, value) / 20000 == pytest.approx(share, abs=2e-4)


def test_goodput_wants_both_and_the_whole_answer() -> None:
    slo = Slo(first_s=0.5, token_s=0.151)
    assert slo.met(answer())
    assert not slo.met(answer(chunk_s=(0.51, 0.6)))
    assert not slo.met(answer(chunk_s=(0.5, 0.6, 0.82)))
    assert slo.met(answer(chunk_s=(0.5, 0.6, 0.82), tokens=4))  # two came in one piece
    assert not slo.met(answer(status="cut"))
    assert not slo.met(answer(chunk_s=(), status="ok"))
    assert slo.met(answer(chunk_s=(0.5,)))


def test_gaps_and_tokens() -> None:
    outcome = answer(tokens=7)
    assert outcome.gaps_s == pytest.approx([0.1, 0.2])
    assert outcome.token_s == pytest.approx(0.3 / 6)
    assert [t for _, t in outcome.served()] == [2, 3, 2]
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_groups_by_tenant_and_by_tenth_of_the_adapters() -> None:
    outcomes = [
        answer(f"t{i % 4}", f"a{i}", chunk_s=(0.01 * (i + 1),)) for i in range(20)
        for _ in range(20 - i)
    ]  # fmt: skip
    tenants = by_tenant(outcomes, Slo())
    assert [g.name for g in tenants] == ["t0", "t1", "t2", "t3"]
    assert sum(g.requests for g in tenants) == len(outcomes) == 210
    assert [g.num_adapters for g in tenants] == [5, 5, 5, 5]
    parts = deciles(outcomes)
    assert [len({o.adapter for o in p}) for p in parts] == [2] * 10
    assert {o.adapter for o in parts[0]} == {"a0", "a1"}
    assert {o.adapter for o in parts[9]} == {"a18", "a19"}
    groups = by_decile(outcomes, Slo())
    assert [g.requests for g in groups] == [20 - 2 * i + 19 - 2 * i for i in range(10)]
    assert groups[9].first is not None and groups[9].first.max == pytest.approx(0.2)
    assert len(deciles(outcomes[:20])) == 1 and deciles([]) == [[]]
    pooled = least_popular_tenants(outcomes, Slo())
    assert pooled.requests == sum(20 - i for i in range(3, 20, 4))


def test_windows_count_service_and_find_who_contends() -> None:
    """Two tenants with work all the time, one served twice as well; a third comes for a moment."""
    busy = [0.25 + 0.5 * i for i in range(20)]
    outcomes = [
        answer("a", chunk_s=busy, tokens=40),
        answer("b", chunk_s=busy, tokens=20),
        answer("c", due_s=3.0, chunk_s=(0.2,)),
        answer("c", due_s=4.0, chunk_s=(), status="429 x"),
    ]
    found = timeline(outcomes, {}, 10.0, Slo())
    assert found.window_s == 0.5 and len(found.due) == 20
    assert list(found.tenants) == ["a", "b", "c"]
    assert found.service.sum(axis=1).tolist() == pytest.approx([90, 50, 12])
    assert found.service[0, 0] == pytest.approx(10 + 2 * 2)
    assert found.service[0, 5] == pytest.approx(4) and found.service[1, 5] == pytest.approx(2)
    assert found.contending[:19].tolist() == [2] * 19
    assert found.jain[5] == pytest.approx(0.9)
    assert found.due.sum() == 4 and found.failed[8] == 1 and found.good[6] == 1
    assert found.running[6] == pytest.approx(2 + 0.2 / 0.5)
    assert found.adapters[10] == 2
    weighted = timeline(outcomes, {"a": 2.0}, 10.0, Slo())
    assert weighted.jain[5] == pytest.approx(1)


def stats(**counters: object) -> dict[str, object]:
    return {"num_steps": 0, "num_waiting": 0, **counters}


def sample(at_s: float, *replicas: tuple[int, dict[str, object]]) -> Sample:
    return Sample(
        at_s,
        [
            {"pids": {"core": pid}, "stats": s, "residency": {"device": ["x", "y"], "host": ["z"]}}
            for pid, s in replicas
        ],
    )


def test_counters_count_from_the_run_s_start_and_for_a_new_core_from_nothing() -> None:
    before = stats(num_steps=100, num_loads=5, arrivals=[["device", 10], ["cold", 5]])
    after = stats(num_steps=150, num_loads=7, arrivals=[["device", 16], ["cold", 7]])
    fresh = stats(num_steps=30, num_loads=1, arrivals=[["host", 2]], queue_s=0.5, num_waiting=1)
    found = read_server(
        [sample(0, (1, before)), sample(2, (1, after)), sample(4), sample(6, (2, fresh))]
    )
    assert found is not None
    assert found.totals["num_steps"] == 80 and found.totals["num_loads"] == 3
    assert found.hits == {"device": 6, "host": 2, "cold": 2}
    assert found.hit_rates["device"] == 0.6
    assert (found.num_replicas, found.num_cores) == (1, 2)
    assert found.queue_s is not None and found.queue_s.max == 0.5
    assert found.resident == [(0, 2, 1), (2, 2, 1), (4, 0, 0), (6, 2, 1)]
    assert found.overhead is None
    assert read_server([]) is None and read_server([sample(0)]) is None


def test_numbers_have_their_unit() -> None:
    assert [seconds(v) for v in (5e-6, 0.01234, 0.9999, 1.234, 61.0, 4000, None)] == [
        "5 µs", "12.3 ms", "1 s", "1.23 s", "61 s", "4,000 s", "–"
    ]  # fmt: skip
    assert [part(v) for v in (0.5, 0.99999, 1.0, None)] == ["50.0 %", "99.9 %", "100.0 %", "–"]
    assert [number(v) for v in (3.0, 1234567, 0.12345, None)] == ["3", "1,234,567", "0.123", "–"]
