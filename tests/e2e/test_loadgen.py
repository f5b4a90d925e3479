"""The load generator makes what a scenario needs on the running quickstart, and reports of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]
PROJECT = Path(__file__).parents[2]
SCENARIO = ["--scenario", "cold-start", "--set", "duration_s=12", "--set", "cold=4"]
SMALLER = ["--set", "tenants=3", "--set", "rate_factor=0.5", "--set", "length_factor=0.1"]


def loadgen(service: Service, *arguments: str) -> str:
    where = ["--quickstart", str(service.data), "--url", service.url]
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", *arguments, *where, *SCENARIO, *SMALLER],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_publish_then_run(service: Service, tmp_path: Path) -> None:
    roster, out = tmp_path / "roster.json", tmp_path / "run"
    told = loadgen(service, "publish", "--roster", str(roster), "--ranks", "4,8")
    assert "3 tenants with 5 adapters are there" in told
    with service.client("admin") as client:
        page = client.get("/v1/adapters", params={"tenant": "load-t001"}).json()["data"]
    assert [record["name"] for record in page] == ["a0001", "a0003"]
    keys = roster.read_text()
    loadgen(service, "publish", "--roster", str(roster))  # makes nothing again
    assert roster.read_text() == keys

    loadgen(service, "run", "--roster", str(roster), "--out", str(out), "--seed", "2",
            "--fault", "3:echo {core_pid}")  # fmt: skip
    report = json.loads((out / "report.json").read_text())
    assert report["whole"]["ok"] == report["whole"]["requests"] >= 12
    assert report["errors"]["by_kind"] == {}
    assert report["estimated"] == 0
    # The server's usage says that answers had the wanted length, and prompts nearly.
    asked = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert all(o["completion_tokens"] == o["asked_output"] for o in asked)
    assert 0.8 <= report["input_ratio"] <= 1.25
    # And its own counters say the same as the client counted.
    totals = report["server"]["totals"]
    assert totals["output_tokens"] == pytest.approx(
        sum(o["completion_tokens"] for o in asked), rel=0.2
    )
    (fault,) = report["facts"]["faults"]
    assert fault["exit_code"] == 0 and fault["output"].strip().isdigit()
