"""What `make isolation` says of runs whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.client.outcome import OK, UNFINISHED, Outcome
from loadgen.report.slo import Slo
from tests.support.isolation_report import Report, Seen, text, write

STEP_S = 0.5


def seen(quiet_s: list[float | None], *, noisy: bool) -> Seen:
    """Two quiet tenants in turn, and one answer of the neighbour's."""
    outcomes = [
        Outcome(
            index, float(index), f"q{index % 2}", "a", UNFINISHED if first is None else OK, 0.0,
            9.0 if first is None else first + 0.1, first,
        )
        for index, first in enumerate(quiet_s)
    ]  # fmt: skip
    if noisy:
        outcomes.append(Outcome(99, 0.0, "noisy", "n", OK, 0.0, 3.0, 2.0))
    counts = {
        "num_requests": 2, "prompt_tokens": 30, "cached_tokens": 10, "output_tokens": 5,
        "queue_s": 0.5,
    }  # fmt: skip
    used = dict.fromkeys(("q0", "q1", "noisy"), counts)
    return Seen(outcomes, used, wall_s=10.0)


def report(fair: list[float | None], fcfs: list[float | None]) -> Report:
    runs = {
        "alone": seen([0.2] * 20, noisy=False),
        "deficit": seen(fair, noisy=True),
        "fcfs": seen(fcfs, noisy=True),
    }
    line = {"w_local": 0.0, "adapter_p99_median_s": 0.1, "adapter_p99_worst_s": 0.3, "p99_s": 0.2}
    return Report.of(runs, [line, {**line, "w_local": 0.01}], "noisy", Slo(), STEP_S, 2.0, 4.0)


def test_the_verdict_is_p95_against_twice_alone_and_a_step() -> None:
    good = report([0.6] * 20, [4.0] * 20)
    assert good.bound_s == pytest.approx(0.9) and good.holds
    assert not report([1.0] * 20, [4.0] * 20).holds
    assert not report([0.6] * 20, [0.7] * 20).holds, "the damage under fcfs doesn't show"
    assert report([0.6] * 20, [None] * 20).holds, "who got no token has waited to the end at least"


def test_it_tells_every_tenant_and_what_was_done_for_it(tmp_path: Path) -> None:
    good = report([0.6] * 19 + [None], [4.0] * 20)
    told = good.to_json()
    pooled = {part["run"]: part for part in told["quiet"]}
    assert (pooled["deficit"]["requests"], pooled["deficit"]["good"]) == (20, 19)
    assert pooled["deficit"]["p99_s"] > 6 and pooled["deficit"]["queue_s"] == 0.25
    assert [p["tenant"] for p in told["tenants"] if p["run"] == "fcfs"] == ["noisy", "q0", "q1"]
    assert told["work"]["fcfs"] == pytest.approx(3 * (20 + 2 * 5) / 10)
    json.dumps(told)
    write(good, tmp_path)
    html = (tmp_path / "report.html").read_text()
    assert html.count("<img") == 2 and "q1" in html
    assert "DOES NOT HOLD" in text(good) and (tmp_path / "report.md").read_text().count("## ") == 4
