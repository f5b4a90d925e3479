"""Faults from the field, on the GPU: B-CUDAGRAPH-VARIANT, B-SLOT-STALE, B-LOGITS-MAP."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.device_arena import DTYPES
from engine.plan import NO_ADAPTER, TableEntry
from tests.support.cuda_runners import bits, check, driver_of, prompts
from tests.support.drive import Driver
from tests.support.tiny_models import ADAPTERS, make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
R4, R8, R64 = range(3)
"""Indices of the model's adapters; r8 and r64 have an lm_head."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("qwen3"), "qwen3", tuple(ADAPTERS))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_rows", [3, 16, 19])
def test_graphs_with_and_without_adapters_leave_each_other_alone(model, runners, num_rows, dtype):
    """One size all the time: base, one adapter, mixed, base, an adapter in another place; each
    pass beside the same one enqueued afresh."""
    driver = driver_of(model, runners.twofold, dtype=dtype)
    sequences = [driver.begin(prompt) for prompt in prompts([4 + i % 9 for i in range(num_rows)])]
    driver.step({s: len(s.tokens) for s in sequences})
    base, r4, mixed = [NO_ADAPTER], [R4], [NO_ADAPTER, R4, R8]
    answers = {}
    for turn, owners in enumerate((base, r4, mixed, base, r4, mixed, base)):
        for i, sequence in enumerate(sequences):
            driver.adapter_of[sequence.row] = owners[i % len(owners)]
        if turn == 4:
            # Elsewhere, and others in the place that it had.
            start = driver.first_run
            driver.plan(entries=(TableEntry(R4, 0, None),))
            driver.put_adapter(R4, model.adapters["r4"], DTYPES[dtype])
            keep, driver.next_run = driver.next_run, start
            driver.put_adapter(50, half(model.adapters["r4"]), DTYPES[dtype])
            driver.next_run = keep
        result, _ = driver.plan(dict.fromkeys(sequences, 1))
        assert not any(result.failed)
        logits = driver.runner.latest_logits(num_rows)
        known = answers.setdefault(tuple(owners), logits)
        assert torch.equal(bits(known), bits(logits))
    assert driver.runner.twofold.num_different == 0
    of_base, of_r4, of_mixed = answers.values()
    assert not torch.equal(of_base, of_r4) and not torch.equal(of_r4, of_mixed)


def half(adapter):
    return replace(
        adapter, modules={m: replace(w, b=w.b * 0.5) for m, w in adapter.modules.items()}
    )


def some_of(adapter, keep):
    return replace(adapter, modules={m: w for m, w in adapter.modules.items() if keep(m)})


def of_rank(adapter, rank):
    """Its first ranks alone."""
    return replace(
        adapter,
        modules={
            m: replace(w, a=w.a[:rank], b=w.b[:, :rank].contiguous())
            for m, w in adapter.modules.items()
        },
    )


@pytest.mark.parametrize("which", ["fewer modules", "lower rank", "fewer layers"])
def test_nothing_of_an_evicted_adapter_shows(model, runners, which):
    """An adapter in pages and at a table index that a larger one had answers as in fresh ones."""
    full = model.adapters["r64"]
    names = {m.id: m.name for m in model.spec.modules.modules}
    small = {
        "fewer modules": some_of(full, lambda m: names[m].endswith(("q_proj", "v_proj"))),
        "lower rank": of_rank(full, 4),
        "fewer layers": some_of(full, lambda m: "layers.0." in names[m]),
    }[which]
    assert 0 < small.layout().num_elements < full.layout().num_elements
    answers = []
    for first in (full, None):
        driver = Driver.on(model.folder, runners.captured, dtype="bfloat16")
        driver.runner.poison()
        if first is not None:
            driver.put_adapter(0, first, torch.bfloat16)
            before = driver.begin(prompts((12,), seed=4)[0], 0)
            driver.run([before], 3)
            driver.rows, driver.next_run = 0, driver.first_run
            driver.free[:0] = before.pages
        driver.put_adapter(0, small, torch.bfloat16)
        sequences = [driver.begin(prompt, 0) for prompt in prompts((9, 14, 3))]
        sequences.append(driver.begin(prompts((7,), seed=9)[0]))
        driver.run(sequences, 5, chunk=8)
        answers.append(torch.cat([driver.logits(s) for s in sequences]))
    assert answers[0].isfinite().all()
    assert torch.equal(bits(answers[0]), bits(answers[1]))


def test_rows_of_the_head_keep_their_adapters(model, runners):
    """One step: a chunk of r8 that samples nothing, r64 decoding, the base decoding, the last
    chunk of r8, r64's first tokens."""
    driver = driver_of(model, runners.captured)
    given = prompts((30, 6, 9, 21, 11))
    middle, decoding, plain, last, begins = (
        driver.begin(prompt, adapter)
        for prompt, adapter in zip(given, (R8, R64, NO_ADAPTER, R8, R64), strict=True)
    )
    driver.step({decoding: 6, plain: 9, last: 13, middle: 10})
    driver.step({middle: 10, decoding: 1, plain: 1, last: 8, begins: 11})
    everyone = [middle, decoding, plain, last, begins]
    driver.run(everyone, 8)
    for name, sequence in zip(("r8", "r64", None, "r8", "r64"), everyone, strict=True):
        check(model, name, sequence, driver.logits(sequence))
