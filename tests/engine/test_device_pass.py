"""The GPU's pass, its kernels in Triton's interpreter where there is no GPU, against the CPU's."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from engine.sequence import Sequence
from tests.support.drive import Driver
from tests.support.interpreted_runner import InterpretedRunner
from tests.support.recording import RecordingRunner
from tests.support.tiny_models import ADAPTERS, SIZES, build_model, make_model

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled there")


@pytest.mark.parametrize("name", ["qwen3", "llama-biased"])
def test_logits_are_those_of_the_cpu_runner(tmp_path, name):
    """A prompt in two pieces beside a decoding row, then both decode. Norms of heads, biases."""
    adapters = ("r4",) if name == "qwen3" else ()
    model = make_model(tmp_path, name, adapters)
    rows = []
    for make in (RecordingRunner, InterpretedRunner):
        driver = Driver.on(model.folder, make, num_rows=2)
        for index, adapter in enumerate(model.adapters.values()):
            driver.put_adapter(index, adapter)
        long = driver.begin(list(range(3, 24)), 0 if adapters else -1)
        short = driver.begin([7, 1, 9])
        for counts in ({long: 17, short: 3}, {long: 4, short: 1}, {long: 1, short: 1}):
            driver.step(counts)
        rows.append(torch.cat([driver.logits(long), driver.logits(short)]))
    assert (rows[0] - rows[1]).norm() <= 1e-5 * rows[0].norm()


def test_each_step_takes_a_graph_that_serves_all_its_adapters(tmp_path):
    """One on attention, one of a small rank on the MLP and the head, one of a large rank on
    everything: each enters with the first step of its sequence, which it has beside the others."""
    torch.manual_seed(0)
    config = LlamaConfig(**{**SIZES, "num_hidden_layers": 1, "vocab_size": 128})
    model = build_model(tmp_path, config, ADAPTERS)
    rows = []
    for make in (RecordingRunner, InterpretedRunner):
        driver = Driver.on(model.folder, make, num_rows=4)
        counts: dict[Sequence, int] = {}
        begun = []
        for index, adapter in enumerate(model.adapters.values()):
            sequence = driver.begin([5, 1, 7 + index], index)
            begun.append(sequence)
            driver.step({**counts, sequence: 3}, (driver.upload(index, adapter),))
            counts[sequence] = 1
        driver.step(counts)
        rows.append(torch.cat([driver.logits(sequence) for sequence in begun]))
    off = (rows[0] - rows[1]).norm(dim=1)
    assert (off <= 1e-5 * rows[0].norm(dim=1)).all()
