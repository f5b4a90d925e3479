"""B-SEED-MIX: what a seeded request draws is its own affair, whoever runs beside it."""

from __future__ import annotations

import pytest

from engine.types import FinishReason, SamplingParams
from tests.support.real_engine import RealEngine
from tests.support.tiny_models import ADAPTERS, make_model

MINE = SamplingParams(temperature=1.2, top_p=0.9, seed=42)
COLD, HOT = SamplingParams(temperature=0.0), SamplingParams(temperature=1.5, top_p=0.1, seed=3)
PROMPT = [7, 20, 3, 91, 5, 18, 44, 2, 60, 11, 35]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("llama"), "llama", tuple(ADAPTERS))


def answer(model, *, before=0, after=0, num_pages=300, depth=0):
    """Of the seeded request, with neighbours in rows before and after it, none of them seeded as
    it is; and how often anything was preempted."""
    engine = RealEngine(model, num_pages=num_pages, depth=depth, max_model_len=64)
    for i in range(before):
        engine.submit(f"b{i}", [i + 1, 9, 30], ("r8", None)[i % 2], sampling=(COLD, HOT)[i % 2])
    engine.submit("mine", PROMPT, "r4", max_tokens=20, tenant="u", sampling=MINE)
    for i in range(after):
        engine.submit(f"a{i}", PROMPT, (None, "r4")[i % 2], max_tokens=24, sampling=HOT)
    engine.run()
    assert all(told.finish is FinishReason.LENGTH for told in engine.told.values())
    return engine.told["mine"].tokens, engine.engine.scheduler.stats(0.0).num_preemptions


@pytest.mark.parametrize("depth", [0, 1])
def test_a_seeded_request_answers_the_same_alone_in_any_row_and_preempted(model, depth):
    """B-SEED-MIX: with and without neighbours that have no seed."""
    alone, _ = answer(model)
    assert answer(model, before=3, after=2, depth=depth)[0] == alone
    crowded, num_preemptions = answer(model, before=2, after=5, num_pages=40, depth=depth)
    assert num_preemptions > 0 and crowded == alone


def test_choices_differ_by_seed_and_repeat_and_cold_ones_are_equal(model):
    """n = 4 with a seed for each choice, and n = 4 at temperature 0, all in one batch."""

    def choices():
        engine = RealEngine(model, num_pages=300, max_model_len=64)
        for seed in range(4):
            sampling = SamplingParams(temperature=1.2, seed=seed)
            engine.submit(f"warm{seed}", PROMPT, sampling=sampling)
            engine.submit(f"cold{seed}", PROMPT, sampling=COLD)
        engine.run()
        return {name: tuple(told.tokens) for name, told in engine.told.items()}

    first, second = choices(), choices()
    assert first == second
    assert len({first[f"warm{seed}"] for seed in range(4)}) == 4
    assert len({first[f"cold{seed}"] for seed in range(4)}) == 1
