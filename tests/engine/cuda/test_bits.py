"""The same bits from a graph and afresh, twice in a row, and with an adapter of no effect."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from engine.buckets import MIXED_BLOCK_ROWS
from engine.device_arena import DTYPES
from engine.plan import NO_ADAPTER, Move, TableEntry
from tests.support.cuda_runners import begin, bits, driver_of, prompts
from tests.support.real_engine import with_moves
from tests.support.tiny_models import ADAPTERS, make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
BOTH = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
ROWS = 64
ZEROS = (100, 100 + ROWS, 100 + 2 * ROWS)
"""Indices of the first adapters whose B is zero, by reach; each row may have one of each."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By name, made when first asked for."""
    made = {}

    def model(name):
        if name not in made:
            adapters = () if "-" in name else tuple(ADAPTERS)
            made[name] = make_model(tmp_path_factory.mktemp(name), name, adapters)
        return made[name]

    return model


@BOTH
def test_a_replay_gives_the_bits_of_the_same_pass_enqueued_afresh(models, runners, dtype):
    """After adapters were replaced, moved and removed."""
    model = models("qwen3")
    driver = driver_of(model, runners.twofold, dtype=dtype)
    torch_dtype = DTYPES[dtype]
    sequences = [s for _, s in begin(driver, model, (9, 17, 30, 12, 3))]
    driver.run(sequences, 4, chunk=11)
    r8, r4 = model.adapters["r8"], model.adapters["r4"]
    driver.plan(entries=(TableEntry(1, 0, None),))
    driver.put_adapter(1, r4, torch_dtype)
    pages = driver.num_run_pages(r4, torch_dtype)
    moved = driver.next_run - pages
    driver.plan(
        moves=(Move(moved, moved + 3, pages),), entries=(TableEntry(1, moved + 3, r4.layout()),)
    )
    driver.next_run += 3
    driver.put_adapter(2, r8, torch_dtype)
    driver.run(sequences, 12)
    assert driver.runner.twofold.num_passes >= 12
    assert driver.runner.twofold.num_different == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_a_whole_engine_replays_the_bits_of_eager_passes(models, runners, depth):
    """While adapters come, go, take each other's places and move."""
    model = models("qwen3")
    lengths = [6 + i % 9 for i in range(32)]
    engine = with_moves(model, prompts(lengths), depth=depth, make=runners.twofold)
    stats = engine.engine.scheduler.stats(0.0)
    assert stats.num_moves > 0 and stats.num_evictions > 0
    assert engine.runner.twofold.num_passes > 40
    assert engine.runner.twofold.num_different == 0


@BOTH
def test_two_runs_of_one_batch_are_equal(models, runners, dtype):
    model = models("qwen3")
    driver = driver_of(model, runners.captured, dtype=dtype)
    sequences = [s for _, s in begin(driver, model, (9, 17, 30, 12, 3, 21, 8))]
    for counts in ({s: len(s.tokens) for s in sequences}, dict.fromkeys(sequences, 1)):
        results = [Logits.of(driver, counts) for _ in range(3)]
        assert all(torch.equal(bits(results[0].rows), bits(other.rows)) for other in results[1:])
        driver.step(counts)


class Logits:
    """rows [N, V] of the sampled rows of one pass, launched without being committed."""

    def __init__(self, rows, shape):
        self.rows, self.shape = rows, shape

    @classmethod
    def of(cls, driver, counts):
        result, plan = driver.plan(counts)
        assert not any(result.failed)
        num = sum(span.samples for span in plan.spans)
        return cls(driver.runner.latest_logits(num), driver.runner.shapes[-1])


def with_zeros(driver, model, dtype):
    """Enters adapters without effect, one for each row and reach; those of a reach share a run."""
    names = {m.id: m.name for m in model.spec.modules.modules}
    small, large = model.adapters["r8"], model.adapters["r64"]
    attention = {m: w for m, w in small.modules.items() if "self_attn" in names[m]}
    assert 0 < len(attention) < len(small.modules)
    of_reach = (large, small, replace(small, modules=attention))
    for first, full in zip(ZEROS, of_reach, strict=True):
        zero = replace(
            full, modules={m: replace(w, b=torch.zeros_like(w.b)) for m, w in full.modules.items()}
        )
        start = driver.next_run
        driver.put_adapter(first, zero, dtype)
        layout = zero.layout()
        driver.plan(entries=tuple(TableEntry(first + i, start, layout) for i in range(1, ROWS)))


@BOTH
@pytest.mark.parametrize("name", ["qwen3", "qwen2", "llama"])
def test_adapters_without_effect_give_the_bits_of_the_base_in_every_graph(
    models, runners, name, dtype
):
    """Every graph with adapters against the graph without them: norms, head norms and biases add
    up alike in all of them."""
    model = models(name)
    driver = driver_of(model, runners.captured, dtype=dtype, num_rows=ROWS, arena_bytes=32 << 20)
    with_zeros(driver, model, DTYPES[dtype])
    sequences = [driver.begin(prompt) for prompt in prompts([3 + i % 5 for i in range(ROWS)])]
    for part in (sequences[:32], sequences[32:]):
        driver.step({s: len(s.tokens) for s in part})
    reached = set()
    for counts in decode_and_mixed(sequences):
        base = Logits.of(driver, counts)
        for first, num_adapters in product(ZEROS, (1, 2, 6, 8, 12, 16, 20, 40, ROWS)):
            for i, sequence in enumerate(counts):
                driver.adapter_of[sequence.row] = first + i % num_adapters
            found = Logits.of(driver, counts)
            reached.add(found.shape)
            assert torch.equal(bits(found.rows), bits(base.rows)), found.shape
        driver.adapter_of = dict.fromkeys(driver.adapter_of, NO_ADAPTER)
    assert reached == reachable(driver.runner._pass.buckets)


def reachable(buckets):
    """Shapes with adapters, but for those that have room for more blocks than there can be."""
    of_tokens = {}
    for shape in buckets.shapes():
        if shape.has_adapters:
            key = (shape.decode, shape.tokens, shape.reach)
            of_tokens.setdefault(key, set()).add(shape)
    found = set()
    for (decode, tokens, _), shapes in of_tokens.items():
        rows = min(ROWS, tokens)
        most = rows + (tokens - rows) // MIXED_BLOCK_ROWS
        enough = min(s.num_blocks for s in shapes if s.num_blocks >= most)
        found |= {s for s in shapes if decode or s.num_blocks <= enough}
    return found


def decode_and_mixed(sequences):
    """Tokens of each sequence, for every number of rows and of tokens that has graphs."""
    for num in (1, 7, 16, 27, 32, 50, 64):
        yield dict.fromkeys(sequences[:num], 1)
    for num in (1, 5, 20, 63):
        # One is not at its end: no decode pass.
        for more in (1, 60, 120, 190):
            tokens = sequences[num].tokens
            tokens += [7] * max(0, more + 1 - len(tokens) + sequences[num].num_computed)
            if more + num <= 256:
                yield dict.fromkeys(sequences[:num], 1) | {sequences[num]: more}


@BOTH
def test_a_row_whose_adapter_has_no_effect_among_others(models, runners, dtype):
    """Its bits, and those of base rows, are as without it, whatever graph that takes."""
    model = models("qwen3")
    driver = driver_of(model, runners.captured, dtype=dtype)
    with_zeros(driver, model, DTYPES[dtype])
    sequences = [driver.begin(prompt) for prompt in prompts([3 + i % 5 for i in range(32)])]
    driver.step({s: len(s.tokens) for s in sequences})
    rng = np.random.default_rng(0)
    for num in (2, 9, 17, 32):
        for others in ([NO_ADAPTER], [0], [NO_ADAPTER, 0, 1, 2]):
            of = {s: int(rng.choice(others)) for s in sequences[:num]}
            outputs = []
            for own in (ZEROS[0], NO_ADAPTER):
                driver.adapter_of.update({s.row: a for s, a in of.items()})
                driver.adapter_of[sequences[num // 2].row] = own
                outputs.append(Logits.of(driver, dict.fromkeys(of, 1)))
            with_it, without = outputs
            is_alike = [a == NO_ADAPTER or with_it.shape == without.shape for a in of.values()]
            is_alike[num // 2] = True
            rows = [i for i, alike in enumerate(is_alike) if alike]
            assert torch.equal(bits(with_it.rows[rows]), bits(without.rows[rows]))
