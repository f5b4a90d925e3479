"""The benchmark runs, and what it compares answers alike."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.tiny_models import make_model


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_engine_answers_as_the_plain_loop(tmp_path, project, name):
    folder = make_model(tmp_path, name).folder
    options = ["--adapters", "3", "--rank", "4", "--batch", "4", "--prompt", "20", "--tokens", "9"]
    command = [sys.executable, "-m", "engine.bench", "--device", "cpu", "--model", str(folder)]
    run = subprocess.run(
        [*command, *options, "--rounds", "2", "--dtype", "float32", "--threads", "1", "--json"],
        check=True,
        capture_output=True,
        text=True,
        cwd=project,
    )
    plain, base, adapters = (json.loads(line) for line in run.stdout.splitlines())
    assert base["same_tokens"] == 1.0
    assert min(plain["tok_s"], base["of_plain"], adapters["of_base"]) > 0
    assert "3 adapters of rank 4" in adapters["what"]


def test_more_adapters_than_room_are_served_in_turn(tmp_path, project):
    folder = make_model(tmp_path, "llama").folder
    options = ["--adapters", "8", "--rank", "4", "--clients", "8", "--batch", "4", "--steps", "80"]
    command = [sys.executable, "-m", "engine.bench", "turns", "--model", str(folder), "--json"]
    run = subprocess.run(
        [*command, *options, "--threads", "1"],
        check=True,
        capture_output=True,
        text=True,
        cwd=project,
    )
    report = json.loads(run.stdout)
    assert "room for 2 of 8" in report["what"]
    assert report["of_resident"] > 0 and report["adapters_served"] == 8
