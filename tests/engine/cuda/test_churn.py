"""A ready runner compiles, allocates, pins and frees nothing, whatever comes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.adapters.weights import Adapter, ModuleWeights
from engine.types import SamplingParams
from tests.support.cuda_counts import DeviceCounts
from tests.support.real_engine import PAGE_TOKENS, RealEngine
from tests.support.tiny_models import make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
NUM_ADAPTERS = 500
MAX_SEQS = 33
MAX_LEN = 96
VOCAB = 384


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = make_model(tmp_path_factory.mktemp("qwen3"), "qwen3")
    rng = np.random.default_rng(0)
    adapters = {f"a{i}": random_adapter(made.spec.modules, rng) for i in range(NUM_ADAPTERS)}
    return replace(made, adapters=adapters)


def random_adapter(table, rng):
    """Of any rank and any modules; one in four with biases."""
    num = int(rng.integers(1, len(table.modules) + 1))
    biased = rng.random() < 0.25
    modules = {}
    for m in rng.choice(len(table.modules), num, replace=False).tolist():
        module, rank = table.modules[m], int(rng.choice([1, 2, 3, 8, 16, 17, 32, 64]))
        modules[m] = ModuleWeights(
            torch.randn(rank, module.in_features) * 0.1,
            torch.randn(module.out_features, rank) * 0.1,
            0.5,
            torch.randn(module.out_features) if biased and module.name != "lm_head" else None,
        )
    return Adapter(modules, table)


def any_sampling(rng):
    """Each option alone, all together, none."""
    options = {
        "temperature": float(rng.uniform(0.1, 1.5)),
        "top_p": float(rng.uniform(0.1, 1)),
        "top_k": int(rng.integers(1, 60)),
        "min_p": float(rng.uniform(0, 0.3)),
        "presence_penalty": float(rng.uniform(-2, 2)),
        "frequency_penalty": float(rng.uniform(-2, 2)),
        "repetition_penalty": float(rng.uniform(0.5, 2)),
        "seed": int(rng.integers(0, 1 << 62)),
        "logit_bias": tuple(
            (int(t), float(rng.uniform(-9, 9)))
            for t in rng.choice(VOCAB, int(rng.integers(1, 300)), replace=False)
        ),
    }
    names = rng.choice(list(options), int(rng.integers(0, len(options) + 1)), replace=False)
    return SamplingParams(**{name: options[name] for name in names.tolist()})


@pytest.mark.parametrize("depth", [0, 1])
def test_500_adapters_with_all_options_at_all_sizes(model, runners, depth):
    page_bytes = PAGE_TOKENS * model.spec.kv_bytes_per_token(4)
    largest = max(a.layout().num_elements for a in model.adapters.values()) * 4
    engine = RealEngine(
        model,
        num_pages=6 * -(-largest // page_bytes) + (MAX_SEQS + 4) * MAX_LEN // PAGE_TOKENS,
        depth=depth,
        max_model_len=MAX_LEN,
        max_move_bytes=64 * page_bytes,
        max_seqs=MAX_SEQS,
        max_step_tokens=150,
        make=runners.bare,
    )
    rng = np.random.default_rng(1)
    num, sizes = 0, set()
    with DeviceCounts() as counts:
        for size in [*range(1, MAX_SEQS + 1)]:
            for _ in range(size):
                prompt = rng.integers(0, VOCAB, int(rng.integers(1, MAX_LEN - 8))).tolist()
                name = None if num % 20 == 0 else f"a{num % NUM_ADAPTERS}"
                engine.submit(
                    f"r{num}", prompt, name, max_tokens=size % 7 + 1, sampling=any_sampling(rng)
                )
                num += 1
            engine.run(max_steps=100_000)
            sizes.add(size)
    stats = engine.engine.scheduler.stats(0.0)
    totals = counts.totals()
    line = {"test": "churn", "depth": depth, "requests": num, "steps": stats.num_steps}
    line |= {"evictions": stats.num_evictions, "moves": stats.num_moves}
    line |= {"loads": stats.num_loads, "compiled": counts.compiled, "counts": totals}
    line["taken_bytes"] = counts.taken_bytes
    print(json.dumps(line))
    assert num >= NUM_ADAPTERS and stats.num_evictions > 100 and stats.num_moves > 0
    assert not any(totals.values()), totals


def test_the_counts_see_what_they_count():
    with DeviceCounts() as counts:
        torch.empty(100 << 20, device="cuda")
        torch.empty(100 << 20, pin_memory=True)
    totals = counts.totals()
    assert totals["device allocations"] == 1 and totals["pinned allocations"] == 1
    assert any(name.startswith("driver cuMemAlloc") for name in totals), totals
