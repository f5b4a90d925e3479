"""Traces in the columns that are published, told apart by those."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.workloads.arrival import Arrival
from loadgen.workloads.catalogue import scenario
from loadgen.workloads.scenario import WorkloadError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2024-05-10 00:00:00.009930+00:00,8000,1
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,Conversation log
60,ChatGPT,417,0,417,Conversation log
118,ChatGPT,417,276,693,API log
"""


def arrivals(path: Path, **settings: str) -> list[Arrival]:
    given = {"path": str(path), "duration_s": "1e9", **settings}
    schedule = scenario("trace", given).build(1)
    schedule.check()
    return list(schedule.arrivals)


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    found = arrivals(path)
    assert [(a.input_tokens, a.output_tokens) for a in found] == [(374, 44), (396, 109), (2048, 1)]
    assert found[0].time_s == 0
    assert found[1].time_s == pytest.approx(4.314579, abs=2e-6)


def test_burstgpt_has_a_model_and_leaves_out_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURSTGPT)
    found = arrivals(path)
    assert [(a.time_s, a.adapter, a.output_tokens) for a in found] == [
        (0, "a0000", 18), (40, "a0001", 230), (113, "a0000", 276)
    ]  # fmt: skip


def test_sharegpt_asks_again_with_all_that_was_said(tmp_path: Path) -> None:
    turns = [("human", 40), ("gpt", 400), ("human", 20), ("gpt", 80), ("system", 4)]
    conversation = {
        "id": "c1", "conversations": [{"from": who, "value": "x" * n} for who, n in turns]
    }  # fmt: skip
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([conversation]))
    found = arrivals(path, rate="10")
    assert [(a.input_tokens, a.output_tokens, a.session) for a in found] == [
        (10, 100, "c1"), (115, 20, "c1")
    ]  # fmt: skip


def test_our_own_columns_keep_names(tmp_path: Path) -> None:
    rows = [
        {"time_s": 10 * i, "tenant": "acme", "adapter": f"x{i % 2}", "input_tokens": 5,
         "output_tokens": 6, "session": "s"} for i in range(4)
    ]  # fmt: skip
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = arrivals(path)
    assert [(a.time_s, a.tenant, a.adapter) for a in found] == [
        (0, "acme", "a0000"), (10, "acme", "a0001"), (20, "acme", "a0000"), (30, "acme", "a0001")
    ]  # fmt: skip


def test_a_wanted_rate_stretches_time(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURSTGPT)
    assert [a.time_s for a in arrivals(path, rate="3")] == pytest.approx([0, 40 / 113, 1], abs=1e-5)
    twice = arrivals(path, rate_factor="2")
    assert [a.time_s for a in twice] == pytest.approx([0, 20, 56.5])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "when,what\n1,2\n", "when, what are of no trace known here"),
        ("a.jsonl", "{not json", "can't be read"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n", "request 1: ValueError"),
        ("a.csv", "input_tokens,output_tokens\n", "has no requests"),
    ],
)
def test_what_can_not_be_read_is_told(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(WorkloadError, match=words):
        arrivals(path)
    with pytest.raises(WorkloadError, match="--set path=FILE"):
        scenario("trace", {}).build(1)
