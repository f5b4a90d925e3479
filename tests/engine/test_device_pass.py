"""The GPU's pass, its kernels in Triton's interpreter where there is no GPU, against the CPU's."""

from __future__ import annotations

import pytest
import torch

from tests.support.drive import Driver
from tests.support.interpreted_runner import InterpretedRunner
from tests.support.recording import RecordingRunner
from tests.support.tiny_models import make_model

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
