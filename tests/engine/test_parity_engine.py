"""The whole engine on real models answers what transformers and PEFT answer alone."""

from __future__ import annotations

import pytest
import torch

from tests.support.real_engine import RealEngine, with_moves
from tests.support.tiny_models import ADAPTERS, make_model


@pytest.fixture(scope="module")
def model(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp(request.param), request.param, tuple(ADAPTERS))


def prompt(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 384, (length,), generator=generator).tolist()


NAMES = (None, "r4", "r8", "r64")
EVERY = pytest.mark.parametrize("model", ["llama", "mistral", "qwen2", "qwen3"], indirect=True)
DEPTH = pytest.mark.parametrize("depth", [0, 1])


@EVERY
@DEPTH
def test_mixed_requests_with_prompts_longer_than_a_step(model, depth):
    engine = RealEngine(model, num_pages=900, depth=depth)
    for i, length in enumerate((40, 3, 17, 33, 9, 50, 1, 26, 12, 21)):
        engine.submit(f"r{i}", prompt(length, i), NAMES[i % 4], max_tokens=24)
    engine.run()
    engine.check_answers()


@EVERY
@DEPTH
def test_prefix_hits(model, depth):
    """A shared prefix is computed once for each adapter, and never used for another."""
    engine = RealEngine(model, num_pages=900, depth=depth)
    shared = prompt(22, 0)
    for turn in range(2):
        for i, name in enumerate(NAMES):
            engine.submit(f"r{turn}-{i}", shared + prompt(5, 10 * turn + i), name, max_tokens=12)
        engine.run()
    engine.check_answers()
    cached = {name: told.num_cached for name, told in engine.told.items()}
    assert all(cached[f"r0-{i}"] == 0 and cached[f"r1-{i}"] == 20 for i in range(4))


@EVERY
@DEPTH
def test_preempted_sequences_go_on_where_they_were(model, depth):
    """Two tenants on an arena with room for a few: pages run out while they decode."""
    engine = RealEngine(model, num_pages=24, depth=depth, max_model_len=64)
    for i in range(6):
        engine.submit(f"r{i}", prompt(14 + i, i), max_tokens=20, tenant="ab"[i % 2])
    engine.run()
    engine.check_answers()
    assert engine.engine.scheduler.stats(0.0).num_preemptions > 0


@DEPTH
@pytest.mark.parametrize("model", ["llama", "qwen3"], indirect=True)
def test_adapters_come_and_go_and_the_arena_moves(model, depth):
    engine = with_moves(model, [prompt(6 + i % 9, i) for i in range(32)], depth=depth)
    stats = engine.engine.scheduler.stats(0.0)
    assert stats.num_moves > 0 and stats.num_evictions > 0
