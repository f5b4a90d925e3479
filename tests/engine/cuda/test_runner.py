"""The GPU runner against transformers and PEFT in fp32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.plan import StepPlan
from engine.types import SamplingParams
from tests.support.cuda_runners import begin, check, driver_of, prompts
from tests.support.real_engine import with_moves
from tests.support.recording import RecordingRunner
from tests.support.tiny_models import ADAPTERS, make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture(scope="module")
def model(request, tmp_path_factory):
    name = request.param
    adapters = () if "-" in name else tuple(ADAPTERS)
    return make_model(tmp_path_factory.mktemp(name), name, adapters)


QWEN3 = pytest.mark.parametrize("model", ["qwen3"], indirect=True)


@pytest.mark.parametrize("how", ["captured", "eager"])
@QWEN3
def test_a_mixed_batch_answers_what_each_would_alone(model, runners, how):
    driver = driver_of(model, getattr(runners, how))
    sequences = begin(driver, model, (37, 5, 21, 18, 33, 2, 40, 1))
    driver.run([sequence for _, sequence in sequences], 24, chunk=13)
    for name, sequence in sequences:
        check(model, name, sequence, driver.logits(sequence))


@pytest.mark.parametrize("model", ["mistral", "llama-biased", "qwen2-sliding"], indirect=True)
def test_windows_biases_and_head_sizes(model, runners):
    driver = driver_of(model, runners.eager)
    sequences = begin(driver, model, (37, 5, 21))
    driver.run([sequence for _, sequence in sequences], 24, chunk=13)
    for name, sequence in sequences:
        check(model, name, sequence, driver.logits(sequence))


@QWEN3
def test_a_row_whose_numbers_overflow_is_alone_in_it(model, runners):
    driver = driver_of(model, runners.captured)
    full = model.adapters["r4"]
    driver.put_adapter(
        3, replace(full, modules={m: replace(w, b=w.b * 1e38) for m, w in full.modules.items()})
    )
    sequences = begin(driver, model, (9, 17))
    broken = driver.begin(prompts((10,), seed=3)[0], 3)
    everyone = [s for _, s in sequences]
    driver.step({s: len(s.tokens) for s in everyone})
    result, _ = driver.plan({broken: 10, **dict.fromkeys(everyone, 1)})
    assert result.failed == (True, False, False)
    for sequence, tokens in zip(everyone, result.tokens[1:], strict=True):
        sequence.num_computed += 1
        sequence.tokens += tokens
    driver.free += broken.pages
    driver.run(everyone, 24)
    for name, sequence in sequences:
        check(model, name, sequence, driver.logits(sequence))


@QWEN3
def test_sampling_draws_what_the_cpu_draws(model, runners):
    options = SamplingParams(
        temperature=0.8, top_p=0.9, top_k=40, seed=7, presence_penalty=0.4, repetition_penalty=1.2
    )
    tokens = []
    for make in (RecordingRunner, runners.captured):
        driver = driver_of(model, make)
        sequences = [s for _, s in begin(driver, model, (9, 17, 30), options)]
        for _ in range(16):
            counts = {s: len(s.tokens) - s.num_computed for s in sequences}
            result, plan = driver.plan(counts)
            for span, drawn in zip(plan.spans, result.tokens, strict=True):
                span.sequence.num_computed += span.num_tokens
                span.sequence.tokens += drawn
        tokens.append([s.tokens for s in sequences])
    assert tokens[0] == tokens[1]


@QWEN3
def test_tokens_go_from_plan_to_plan_on_the_device(model, runners):
    """Two plans in flight: the second is launched before the first's token is on the host."""
    waiting = driver_of(model, runners.captured)
    first = waiting.begin([5, 6, 7, 8, 9])
    waiting.run([first], 9)
    driver = driver_of(model, runners.captured)
    ahead = driver.begin([5, 6, 7, 8, 9])
    start = StepPlan(driver.num_plans, driver.spans({ahead: 5}), new_rows=(ahead.row,))
    launches = [driver.runner.launch(start)]
    tokens = []
    for number in range(1, 9):
        ahead.num_computed = len(ahead.tokens)
        ahead.tokens.append(-1)
        spans = driver.spans({ahead: 1}, on_device=True)
        launches.append(driver.runner.launch(StepPlan(driver.num_plans + number, spans)))
        tokens.append(launches.pop(0).wait().tokens[0][0])
    tokens.append(launches.pop().wait().tokens[0][0])
    assert tokens == first.tokens[-9:]


@QWEN3
@pytest.mark.parametrize("depth", [0, 1])
def test_adapters_come_and_go_and_the_arena_moves(model, runners, depth):
    lengths = [6 + i % 9 for i in range(24)]
    engine = with_moves(model, prompts(lengths), depth=depth, make=runners.captured)
    assert engine.engine.scheduler.stats(0.0).num_moves > 0
