"""The GPU benchmarks over a runner without a model: each command ends and says what it should."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from engine.bench import gpu
from engine.bench.dummy_server import DummyServer
from engine.bench.results import ROOT, commit_of
from engine.config import AdapterConfig
from engine.fake_runner import FakeRunner

KEYS = {
    "throughput": {
        *("shape", "adapters", "rank", "targets", "zipf", "requests", "input", "output"),
        *("max_seqs", "out_tok_s", "prefill_s", "step_ms", "adapter_overhead_fraction"),
        "startup_s",
    },
    "latency": {"batch", "adapters", "step_ms"},
    "stall": {"p50_ms", "p99_ms", "max_ms"},
    "steady": {
        *("load", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "graph_share"),
        "saturated_requests_s",
    },
    "sampler": {"rows", "cost_fraction"},
    "working_set": {"adapters", "room", "out_tok_s", "resident_out_tok_s", "of_resident"},
}
ARGUMENTS = {
    "throughput": "--adapters 0,3 --requests 24 --output 8 --input 20 --zipf 1.0",
    "latency": "--batches 1,6 --adapters 0,2 --output 8",
    "stall": "",
    "steady": "--seconds 0.3",
    "sampler": "",
    "working_set": "--adapters 8 --requests 24 --output 8 --input 20",
}
CASES = {"throughput": 2, "latency": 3, "stall": 1, "steady": 2, "sampler": 1, "working_set": 1}


class Fast(FakeRunner):
    """Half a millisecond a step; room for all."""

    def __init__(self, config, host):
        super().__init__(config)
        self._step_s = 0.0005
        self.num_pages, self.page_bytes = 9000, 1 << 21


@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_a_command_prints_its_keys(command):
    seqs = 64 if command == "stall" else 8
    arguments = f"{command} --dummy-weights --rank 1 --targets attn --max-seqs {seqs + 8}"
    options = gpu.parse(f"{arguments} {ARGUMENTS[command]}".split())
    server = DummyServer(gpu.sizes(options), lambda spec: Fast)
    found = list(gpu.cases(server, options))
    assert len(found) == CASES[command]
    for case in found:
        assert case["bench"] == command
        assert set(case) >= KEYS[command]


def test_a_working_set_beyond_its_room_takes_turns_and_the_server_is_as_before():
    arguments = "working_set --dummy-weights --rank 1 --targets attn --max-seqs 8 --output 8"
    options = gpu.parse([*arguments.split(), "--adapters", "8", "--requests", "24"])
    server = DummyServer(gpu.sizes(options), lambda spec: Fast)
    (case,) = gpu.cases(server, options)
    assert (case["room"], case["clients"]) == (2, 16)
    assert case["evictions"] > 8
    assert server.engine.scheduler.arena.num_pages == server.runner.most_pages


def test_several_commands_share_a_server():
    arguments = "latency sampler --dummy-weights --rank 1 --targets attn --max-seqs 8 --batches 2"
    options = gpu.parse(arguments.split())
    assert gpu.sizes(options).max_rank == AdapterConfig().max_rank
    server = DummyServer(gpu.sizes(options), lambda spec: Fast)
    assert [case["bench"] for case in gpu.cases(server, options)] == ["latency", "sampler"]


class Captured(Fast):
    """Every second pass is one that was captured."""

    def launch(self, plan):
        launch = super().launch(plan)
        launch.result = replace(launch.result, replayed=plan.id % 2 == 0)
        return launch


def test_the_share_of_replayed_steps_is_counted():
    options = gpu.parse(["latency", "--dummy-weights", "--targets", "attn", "--max-seqs", "8"])
    server = DummyServer(gpu.sizes(options), lambda spec: Captured)
    served = server.serve([server.request(None, 4, 9)])
    assert served.graph_share() == pytest.approx(0.5, abs=0.1)
    assert server.engine.scheduler.stats(0.0).num_replayed == sum(s.replayed for s in served.steps)


def test_results_name_their_commit_or_say_that_it_is_unknown(tmp_path):
    assert re.fullmatch("[0-9a-f]{7,}", commit_of(ROOT))
    assert commit_of(tmp_path) == "unknown"
