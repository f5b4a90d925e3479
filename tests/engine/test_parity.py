"""transformers and PEFT, each sequence alone in fp32, say what a mixed batch must answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.plan import NO_ADAPTER, Move, TableEntry
from tests.support.drive import Driver
from tests.support.tiny_models import ADAPTERS, CONFIGS, make_model


@pytest.fixture(scope="module")
def model(request, tmp_path_factory):
    name = request.param
    adapters = () if "-" in name else tuple(ADAPTERS)
    return make_model(tmp_path_factory.mktemp(name), name, adapters)


def prompts(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 384, (n,), generator=generator).tolist() for n in lengths]


def with_adapters(model):
    """A driver whose table holds the model's adapters, in order."""
    driver = Driver.on(model.folder)
    for index, adapter in enumerate(model.adapters.values()):
        driver.put_adapter(index, adapter)
    return driver


def begin_mixed(driver, model, lengths):
    """[(adapter name or None, sequence)], base and adapters in turn."""
    names = [None, *model.adapters]
    chosen = [names[i % len(names)] for i in range(len(lengths))]
    index = {name: i - 1 for i, name in enumerate(names)}
    return [
        (name, driver.begin(prompt, index[name]))
        for name, prompt in zip(chosen, prompts(lengths), strict=True)
    ]


def assert_parity(model, driver, sequences):
    for name, sequence in sequences:
        prompt = list(sequence.request.prompt)
        answer = sequence.tokens[len(prompt) :]
        model.check(name, prompt, answer, driver.logits(sequence))


@pytest.mark.parametrize("model", CONFIGS, indirect=True)
def test_a_mixed_batch_with_prompts_longer_than_a_chunk(model):
    driver = with_adapters(model)
    sequences = begin_mixed(driver, model, (37, 5, 21, 18, 33, 2, 40, 1))
    driver.run([sequence for _, sequence in sequences], 64, chunk=13)
    assert_parity(model, driver, sequences)


@pytest.mark.parametrize("model", ["llama", "mistral"], indirect=True)
def test_moved_pages_and_adapters_give_the_same_answers(model):
    """Every KV page and every run is moved in mid-answer, runs also onto themselves."""
    driver = with_adapters(model)
    sequences = begin_mixed(driver, model, (20, 9, 14, 30))
    for turn in range(24):
        driver.step({s: len(s.tokens) - s.num_computed for _, s in sequences})
        if turn % 6 == 2:
            move_everything(driver, model, [s for _, s in sequences], by=2 if turn % 12 == 2 else 7)
    assert_parity(model, driver, sequences)


def move_everything(driver, model, sequences, by):
    """KV pages to other free pages; the stretch of all runs up by `by` pages."""
    moves = []
    for sequence in sequences:
        targets = [driver.free.pop() for _ in sequence.pages]
        moves += [Move(s, t, 1) for s, t in zip(sequence.pages, targets, strict=True)]
        driver.free[:0] = sequence.pages
        sequence.pages = targets
    first, entries, start = driver.first_run, [], driver.first_run + by
    for index, adapter in enumerate(model.adapters.values()):
        entries.append(TableEntry(index, start, adapter.layout()))
        start += driver.num_run_pages(adapter)
    moves.append(Move(first, first + by, driver.next_run - first))
    driver.first_run, driver.next_run = first + by, driver.next_run + by
    driver.plan(moves=tuple(moves), entries=tuple(entries))


@pytest.mark.parametrize("chunk", [11, 40])
@pytest.mark.parametrize("model", ["qwen3"], indirect=True)
def test_an_adapter_without_effect_gives_the_bits_of_the_batch_without_it(model, chunk):
    """B = 0 on one row, other adapters beside it: with it and without it, all rows, every bit."""
    full = model.adapters["r64"]
    zero = replace(
        full, modules={m: replace(w, b=torch.zeros_like(w.b)) for m, w in full.modules.items()}
    )
    assert zero.is_identity
    outputs = []
    for adapter in (3, NO_ADAPTER):
        driver = with_adapters(model)
        driver.put_adapter(3, zero)
        sequences = [s for _, s in begin_mixed(driver, model, (9, 17, 30, 12))]
        sequences.append(driver.begin(prompts((33,), seed=5)[0], adapter))
        driver.run(sequences, 8, chunk=chunk)
        outputs.append(torch.stack([driver.logits(s) for s in sequences]))
    assert torch.equal(outputs[0].view(torch.int32), outputs[1].view(torch.int32))


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_a_row_whose_numbers_overflow_is_alone_in_it(model):
    """It fails; rows beside it don't, nor does whoever gets the pages that it leaves behind."""
    driver = with_adapters(model)
    full = model.adapters["r4"]
    driver.put_adapter(
        3, replace(full, modules={m: replace(w, b=w.b * 1e38) for m, w in full.modules.items()})
    )
    sequences = begin_mixed(driver, model, (9, 17))
    broken = driver.begin(prompts((10,), seed=3)[0], 3)
    everyone = [s for _, s in sequences]
    driver.step({s: len(s.tokens) for s in everyone})
    result, _ = driver.plan({broken: 10, **dict.fromkeys(everyone, 1)})
    assert result.failed == (True, False, False)
    assert result.tokens[0] == ()
    for sequence, tokens in zip(everyone, result.tokens[1:], strict=True):
        sequence.num_computed += 1
        sequence.tokens += tokens
    # The next pages handed out are those that hold what is not a number.
    driver.free += broken.pages
    driver.run(everyone, 24)
    assert_parity(model, driver, sequences)
