"""What is drawn has the distribution that its definition says: chi-square and Kolmogorov-Smirnov at
a level of 0.1 %, with fixed seeds, against distributions computed here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from loadgen.workloads import draws, lengths
from loadgen.workloads.catalogue import scenario
from loadgen.workloads.popularity import choose, power_indices, punica_counts, zipf_weights

Cdf = Callable[[float], float]


def ks_holds(values: Sequence[float], cdf: Cdf) -> bool:
    """The critical value of sqrt(n) D at 0.1 % is 1.95."""
    ordered, n = sorted(values), len(values)
    distance = max(
        max(abs(cdf(v) - i / n), abs(cdf(v) - (i + 1) / n)) for i, v in enumerate(ordered)
    )
    return math.sqrt(n) * distance < 1.95


def chi_square_holds(counts: Sequence[float], expected: Sequence[float]) -> bool:
    """At 0.1 %, by the approximation of Wilson and Hilferty."""
    assert min(expected) >= 5
    statistic = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    k = len(counts) - 1
    return statistic < k * (1 - 2 / (9 * k) + 3.09 * math.sqrt(2 / (9 * k))) ** 3


def gamma_cdf(shape: float, scale: float) -> Cdf:
    """The regularised lower incomplete gamma function, by its series."""

    def cdf(x: float) -> float:
        z = x / scale
        if z <= 0:
            return 0.0
        term = total = 1 / shape
        for n in range(1, 2000):
            term *= z / (shape + n)
            total += term
            if term < 1e-12 * total:
                break
        return min(1.0, total * math.exp(-z + shape * math.log(z) - math.lgamma(shape)))

    return cdf


def test_the_tests_can_fail() -> None:
    values = np.random.RandomState(1).exponential(1.1, 4000).tolist()
    assert not ks_holds(values, lambda x: 1 - math.exp(-x))
    assert not chi_square_holds([1100, 900, 1000], [1000, 1000, 1000])


@pytest.mark.parametrize("cv", [1, 2, 4])
def test_gamma_gaps(cv: float) -> None:
    """Of S-LoRA's arrivals: Gamma(1/cv², cv²/R)."""
    times = draws.gamma_times(draws.stream(3, "times"), 10.0, cv, 3000)
    gaps = np.diff([0.0, *times]).tolist()
    cdf = gamma_cdf(1 / cv**2, cv**2 / 10)
    # Of a large cv most gaps are shorter than the microsecond that times are rounded to.
    least = 1e-3
    longer = [g for g in gaps if g > least]
    tiny = cdf(least)
    assert ks_holds(longer, lambda x: (cdf(x) - tiny) / (1 - tiny))
    counts = [len(gaps) - len(longer), len(longer)]
    assert chi_square_holds(counts, [3000 * tiny, 3000 * (1 - tiny)])


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.6, 1.0])
def test_power_popularity(alpha: float) -> None:
    """P(index < k) = (k/n)^alpha."""
    n, num_adapters = 20000, 20
    counts = Counter(power_indices(draws.stream(2, "power"), alpha, num_adapters, n))
    edges = [(k / num_adapters) ** alpha for k in range(num_adapters + 1)]
    expected = [n * (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    assert chi_square_holds([counts[k] for k in range(num_adapters)], expected)


def test_the_whole_of_s_lora() -> None:
    schedule = scenario("s-lora", {"adapters": "16", "rate": "50", "duration_s": "100"}).build(42)
    arrivals = schedule.arrivals
    assert len(arrivals) == 5000
    by_adapter = Counter(a.adapter for a in arrivals)
    assert chi_square_holds(list(by_adapter.values()), [5000 / 16] * 16)
    for values in ([a.input_tokens for a in arrivals], [a.output_tokens for a in arrivals]):
        assert min(values) >= 8 and max(values) < 512
        counts = np.histogram(values, bins=np.arange(8, 513, 63))[0].tolist()
        assert chi_square_holds(counts, [5000 * 63 / 504] * 8)
    gaps = np.diff([0.0, *(a.time_s for a in arrivals)]).tolist()
    assert ks_holds(gaps, lambda x: 1 - math.exp(-50 * x))


def test_s_lora_draws_in_the_order_of_its_artifact() -> None:
    random = np.random.RandomState(42)
    index = int(random.power(0.3, 600)[0] * 100)
    num_in, num_out = random.randint(8, 512, 600)[0], random.randint(8, 512, 600)[0]
    time_s = random.gamma(1 / 4, 4 / 2, 600)[0]
    first = scenario("s-lora", {"alpha": "0.3", "cv": "2"}).build(42).arrivals[0]
    assert first.adapter == f"a{index:04}"
    assert (first.input_tokens, first.output_tokens) == (num_in, num_out)
    assert first.time_s == pytest.approx(time_s, abs=1e-6)


@pytest.mark.parametrize("num_requests", [1, 2, 7, 100, 1000, 1001])
def test_punica_popularities(num_requests: int) -> None:
    counts = {kind: punica_counts(kind, num_requests) for kind in
              ("distinct", "uniform", "skewed", "identical")}  # fmt: skip
    assert all(sum(c) == num_requests for c in counts.values())
    assert counts["distinct"] == [1] * num_requests
    assert counts["identical"] == [num_requests]
    assert len(counts["uniform"]) == math.ceil(math.sqrt(num_requests))
    assert max(counts["uniform"]) - min(counts["uniform"]) <= 1
    # Each has 1.5 times the next one's, but for what was left over for one of them.
    geometric = [int(1.5**i) for i in range(40)]
    found = sorted(counts["skewed"])
    left_over = [c for c in found if c not in geometric]
    assert len(left_over) <= 1
    assert set(geometric[: len(found) - 1]) <= set(found)


def test_punica_lengths() -> None:
    """Prompts are log-normal (0.8) times 18 less 1; the answer fills a uniform total."""
    sizes = lengths.punica(draws.stream(4, "lengths"), 2048, 4000)
    continuous = [p + 0.5 for p, _ in sizes if p > 8]  # whole numbers of tokens, cut

    def lognormal(x: float) -> float:
        return 0.5 * (1 + math.erf(math.log((x + 1) / 18) / (0.8 * math.sqrt(2))))

    low = lognormal(9.0)
    assert ks_holds(continuous, lambda x: (lognormal(x) - low) / (1 - low))
    totals = [p + o for p, o in sizes if o > 2 and p + o > 200]
    counts = np.histogram(totals, bins=np.linspace(201, 2048, 9))[0]
    assert chi_square_holds(counts.tolist(), [len(totals) / 8] * 8)
    assert min(o for _, o in sizes) >= 2 and min(p for p, _ in sizes) >= 1


def test_zipf() -> None:
    weights = zipf_weights(12, 1.5)
    assert weights[0] / weights[3] == pytest.approx(4**1.5)
    counts = Counter(choose(draws.stream(5, "zipf"), weights, 20000))
    assert chi_square_holds([counts[i] for i in range(12)], [20000 * w for w in weights])


def test_poisson_split_by_rates() -> None:
    arrivals = scenario("vtc-short-long", {}).build(6).arrivals
    gaps = np.diff([0.0, *(a.time_s for a in arrivals)]).tolist()
    assert ks_holds(gaps, lambda x: 1 - math.exp(-9.5 * x))
    of_first = sum(a.tenant == "t000" for a in arrivals)
    n = len(arrivals)
    assert chi_square_holds([of_first, n - of_first], [n * 8 / 9.5, n * 1.5 / 9.5])
    assert {(a.tenant, a.input_tokens, a.output_tokens) for a in arrivals} == {
        ("t000", 64, 64), ("t001", 256, 256)
    }  # fmt: skip


def test_diurnal_rates() -> None:
    """A sine between 0 and twice the mean, tenants a third of a day apart."""
    settings = {"rate": "60", "tenants": "3", "duration_s": "400", "days": "1"}
    arrivals = scenario("diurnal", settings).build(9).arrivals
    for tenant, zone in (("t000", 0.0), ("t001", 1 / 3), ("t002", 2 / 3)):
        times = [a.time_s for a in arrivals if a.tenant == tenant]

        def cdf(t: float, zone: float = zone) -> float:
            phase = 2 * math.pi * zone
            turn = 2 * math.pi * t / 400
            return t / 400 - (math.sin(turn + phase) - math.sin(phase)) / (2 * math.pi)

        assert ks_holds(times, cdf)


def test_a_varying_rate_is_thinned() -> None:
    times = draws.varying_times(draws.stream(1, "x"), lambda t: 40 * t / 100, 40, 100)
    assert ks_holds(times, lambda t: (t / 100) ** 2)
    assert draws.varying_times(draws.stream(1, "x"), lambda t: 0.0, 0.0, 100) == []
