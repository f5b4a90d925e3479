"""The GPU benchmarks over a runner without a model: each command ends and says what it should."""

from __future__ import annotations

import pytest

from engine.bench import gpu
from engine.bench.dummy_server import DummyServer
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
    },
    "sampler": {"rows", "cost_fraction"},
}
ARGUMENTS = {
    "throughput": "--adapters 0,3 --requests 24 --output 8 --input 20 --zipf 1.0",
    "latency": "--batches 1,6 --adapters 0,2 --output 8",
    "stall": "",
    "steady": "--seconds 0.3",
    "sampler": "",
}
CASES = {"throughput": 2, "latency": 3, "stall": 1, "steady": 2, "sampler": 1}


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
