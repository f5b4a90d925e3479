"""The command line as a person uses it, in processes of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stream_server import serving, started

pytestmark = pytest.mark.slow  # each command imports, and most of them draw
PROJECT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "loadgen"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(0.02, 0.01) as url:
        yield url


def loadgen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
    )


def run_of(url: str, out: Path, *more: str) -> list[str]:
    return ["run", "--url", url, "--out", str(out), "--model", "m/fine", *more]


def test_ctrl_c_ends_with_a_report_of_what_was_seen(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(0.02, 0.01) as server:
        arguments = run_of(server.url, out, "-s", "vtc-overload", "--set", "rate_factor=20")
        process = subprocess.Popen([*COMMAND, *arguments], cwd=PROJECT, stdout=subprocess.DEVNULL)
        server.wait_until_asked()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    facts = json.loads((out / "run.json").read_text())
    assert facts["interrupted"] and facts["wall_s"] < 120
    report = json.loads((out / "report.json").read_text())
    assert report["errors"]["by_kind"]["not sent"] > 1000
    assert "The run was interrupted" in (out / "report.md").read_text()


def test_the_same_seed_makes_the_same_run(url: str, tmp_path: Path) -> None:
    digests = []
    for name in "ab":
        more = ("-s", "campaign", "--set", "duration_s=3", "--seed", "4", "--endpoint", "chat")
        done = loadgen(*run_of(url, tmp_path / name, *more))
        assert done.returncode == 0, done.stderr
        digests.append(json.loads((tmp_path / name / "run.json").read_text())["digest"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--out", "x", "-s", "s-lora"], "Say whom to ask: --roster"),
        (["run", "--out", "x", "-s", "nothing"], "There is no scenario 'nothing'"),
        (["run", "--out", "x", "--set", "rate"], "write name=value"),
        (["run", "--out", "x", "--roster", "/nowhere", "--quickstart", "/nowhere"], "make serve"),
        (["compare", "/nowhere", "/nowhere"], "Name a folder"),
        (["run", "--out", "x", "--model", "m", "--fault", "soon:ls"], "SECONDS:COMMAND"),
    ],
)
def test_what_can_not_be_done_says_what_to_do(arguments: list[str], words: str) -> None:
    done = loadgen(*arguments)
    assert done.returncode == 1
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_scenarios_are_listed_with_their_parameters() -> None:
    assert "noisy-neighbour" in loadgen("list").stdout
    shown = loadgen("list", "s-lora").stdout
    assert "--set alpha=1.0" in shown and "--set inputs=8,512" in shown
