"""A run's files, whole and readable, for few tenants and for many."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from loadgen.client.faults import FaultDone
from loadgen.client.outcome import Outcome
from loadgen.client.run import Facts, Run, RunError, Sample
from loadgen.report.compare import write_comparison
from loadgen.report.files import write
from loadgen.report.plots import all_plots
from loadgen.report.slo import Slo
from loadgen.report.summary import summarise
from loadgen.report.tables import worst
from loadgen.workloads.catalogue import scenario


def made(tenants: int, adapters: int, slower: float = 1.0, seed: int = 1) -> Run:
    """A run of outcomes that were drawn, one in fifty refused."""
    settings = {"tenants": str(tenants), "adapters": str(adapters), "rate": "20", "alpha": "0.4"}
    schedule = scenario("s-lora", {**settings, "duration_s": "60"}).build(seed)
    random = np.random.RandomState(1)
    outcomes = []
    for index, a in enumerate(schedule.arrivals):
        chunks = random.exponential(0.3) * slower + np.cumsum(random.gamma(3, 0.01, 8))
        bad = index % 50 == 7
        outcomes.append(
            Outcome(
                index=index, due_s=a.time_s, tenant=a.tenant, adapter=a.adapter, lag_s=0.001,
                status="429 tenant_busy" if bad else "ok", end_s=float(chunks[-1]),
                first_s=None if bad else float(chunks[0]), detail="<b>Wait</b>" if bad else "",
                retry_after_s=3.0 if bad else None, asked_input=a.input_tokens,
                prompt_tokens=0 if bad else a.input_tokens, completion_tokens=0 if bad else 8,
                chunk_s=() if bad else tuple(chunks.tolist()), chunk_chars=() if bad else (5,) * 8,
            )
        )  # fmt: skip
    facts = Facts(
        schedule.scenario, seed, schedule.parameters, asdict(schedule.shares), schedule.digest(),
        len(outcomes), 60.0, {}, "http://x/v1", "2026-01-01T00:00:00+00:00", 62.0, False,
        {"endpoint": "completions"}, (FaultDone(20.0, "kill -9 7", 0, "gone\n"),),
    )  # fmt: skip
    stats = {"num_steps": 10, "arrivals": [["device", 3], ["cold", 1]], "num_waiting": 0}
    replica = {"pids": {"core": 1}, "stats": stats, "residency": {"device": ["a"], "host": []}}
    later = {**replica, "stats": {**stats, "num_steps": 90, "arrivals": [["device", 9]]}}
    return Run(facts, outcomes, [Sample(0.0, [replica]), Sample(60.0, [later])])


class Page(HTMLParser):
    """Every element that was opened is closed, and what it links to."""

    VOID = ("meta", "img", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.rows = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"
        self.sources += [v for k, v in attrs if k in ("src", "href") and v]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
@pytest.mark.parametrize(("tenants", "adapters"), [(3, 12), (300, 900)])
def test_a_report_is_whole(tmp_path: Path, tenants: int, adapters: int) -> None:
    run = made(tenants, adapters)
    run.write(tmp_path)
    read = Run.read(tmp_path)
    assert read.outcomes == run.outcomes and read.facts.faults == run.facts.faults
    report = write(read, Slo(), tmp_path)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    # Self-contained: nothing but data is referred to, and words of errors are no markup.
    assert all(s.startswith("data:image/svg+xml;base64,") for s in page.sources)
    assert "<script" not in text and "<b>Wait" not in text and "&lt;b&gt;Wait" in text
    assert "share of the most popular adapter" in text and "power law" not in text
    values = json.loads((tmp_path / "report.json").read_text())
    assert len(values["tenants"]) == len(report.tenants)
    assert values["whole"]["requests"] == 1200
    assert values["hit_rates"]["device"] == 1.0
    assert (f"All {len(report.tenants)} tenants" in text) == (len(report.tenants) > 20)
    markdown = (tmp_path / "report.md").read_text()
    for name in re.findall(r"\((plots/[a-z-]+\.svg)\)", markdown):
        ET.parse(tmp_path / name)
    assert len(re.findall(r"^\| t\d\d\d ", markdown, re.MULTILINE)) == min(20, len(report.tenants))


def test_plots_have_labels_and_units_and_are_the_same_each_time() -> None:
    run = made(1, 1)
    report = summarise(run, Slo())
    plots = all_plots(run, report)
    assert [p.name for p in plots] == [
        "traffic", "fairness", "first-cdf", "gap-cdf", "first-tenants", "gap-tenants", "residency"
    ]  # fmt: skip
    assert plots == all_plots(run, report)
    for plot in plots:
        texts = ET.fromstring(plot.svg).iter("{http://www.w3.org/2000/svg}text")
        words = " ".join(t.text or "" for t in texts)
        assert re.search(r"seconds from the start|ms|\bs\b|tokens/s|adapters", words), plot.name


def test_many_tenants_are_told_by_the_slowest() -> None:
    report = summarise(made(300, 900), Slo())
    shown = worst(report.tenants)
    assert len(shown) == 20
    slowest = max((g.first.p99 for g in report.tenants if g.first), default=0)
    firsts = [g.first.p99 for g in shown if g.first]
    assert firsts[0] == slowest and firsts == sorted(firsts, reverse=True)


@pytest.mark.slow
def test_nothing_answered_is_a_report_too(tmp_path: Path) -> None:
    run = made(3, 3)
    lost = [
        Outcome(o.index, o.due_s, o.tenant, o.adapter, "connect", 0.0, 0.01) for o in run.outcomes
    ]
    write(Run(run.facts, lost, ()), Slo(), tmp_path)
    assert "1,200 of 1,200 requests were not answered" in (tmp_path / "report.md").read_text()
    write(Run(run.facts, lost[:0], ()), Slo(), tmp_path)


@pytest.mark.slow
def test_two_runs_side_by_side(tmp_path: Path) -> None:
    for name, run in (("a", made(3, 12)), ("b", made(3, 12, slower=2.0))):
        run.write(tmp_path / name)
    write_comparison(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    markdown = (tmp_path / "out" / "compare.md").read_text()
    (row,) = re.findall(r"\| first token p50 \| .* \|", markdown)
    change = float(re.findall(r"([+-][\d.]+) %", row)[0])
    assert change == pytest.approx(87, abs=10)
    assert "did not have the same requests" not in markdown
    assert Page((tmp_path / "out" / "compare.html").read_text()).open == []
    values = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert values["A"]["whole"]["requests"] == values["B"]["whole"]["requests"]
    made(3, 12, seed=2).write(tmp_path / "c")
    write_comparison(tmp_path / "a", tmp_path / "c", tmp_path / "out")
    assert "did not have the same requests" in (tmp_path / "out" / "compare.md").read_text()
    with pytest.raises(RunError, match="Name a folder that `loadgen run --out` wrote"):
        write_comparison(tmp_path / "a", tmp_path / "nowhere", tmp_path / "out")
