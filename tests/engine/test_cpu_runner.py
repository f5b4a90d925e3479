"""The CPU as a device: moves, uploads, tokens that stay on the device, sizes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from engine.config import MemoryConfig
from engine.cpu_runner import CpuRunner, move_pages
from engine.errors import UnsupportedModel
from engine.plan import Move, StepPlan
from tests.support.drive import Driver, runner_config
from tests.support.tiny_models import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("llama"), "llama", ("r8",))


@pytest.mark.parametrize(
    "move", [Move(2, 5, 9), Move(5, 2, 9), Move(3, 4, 7), Move(4, 3, 7), Move(1, 11, 4)]
)
def test_overlapping_runs_move_whole(move):
    arena = torch.arange(16.0)[:, None].repeat(1, 3)
    wanted = arena.clone()
    wanted[move.target : move.target + move.num_pages] = arena[
        move.source : move.source + move.num_pages
    ].clone()
    move_pages(arena, move)
    assert torch.equal(arena, wanted)


def test_moves_run_in_order():
    rng = random.Random(0)
    arena = torch.arange(20.0)[:, None].clone()
    wanted = list(range(20))
    for _ in range(50):
        num = rng.randint(1, 8)
        move = Move(rng.randint(0, 20 - num), rng.randint(0, 20 - num), num)
        moved = wanted[move.source : move.source + num]
        wanted[move.target : move.target + num] = moved
        move_pages(arena, move)
    assert arena.squeeze(1).tolist() == wanted


def test_an_upload_puts_the_block_at_its_pages(model):
    driver = Driver.on(model.folder)
    driver.host[64:128] = bytes(range(64))
    upload = driver.runner.upload(64, 64, 7)
    while not upload.done():
        pass
    assert bytes(driver.runner.page(7).view(torch.uint8)[:64].tolist()) == bytes(range(64))
    assert not driver.runner.page(8).any()
    driver.runner.close()


def test_an_upload_beyond_the_arena_is_an_error(model):
    driver = Driver.on(model.folder)
    upload = driver.runner.upload(0, 128, driver.runner.num_pages)
    with pytest.raises(ValueError):
        while not upload.done():
            pass


def test_tokens_go_from_plan_to_plan_on_the_device(model):
    """Depth 1: the next plan is launched before the last one's tokens are on the host."""
    waiting = Driver.on(model.folder)
    sequences = [waiting.begin([5, 6, 7, 8, 9]), waiting.begin([1, 2])]
    waiting.run(sequences, 9)
    driver = Driver.on(model.folder)
    ahead = [driver.begin([5, 6, 7, 8, 9]), driver.begin([1, 2])]
    results = [driver.plan({s: len(s.tokens) for s in ahead})[0]]
    for s in ahead:
        s.num_computed = len(s.tokens)
    for number in range(1, 9):
        for s in ahead:
            s.tokens.append(-1)
        spans = driver.spans(dict.fromkeys(ahead, 1), on_device=True)
        for s in ahead:
            s.num_computed += 1
        results.append(driver.runner.launch(StepPlan(number, spans)).wait())
    for i, sequence in enumerate(sequences):
        assert [r.tokens[i][0] for r in results] == sequence.tokens[-9:]


def test_a_plan_without_spans_only_moves(model):
    driver = Driver.on(model.folder)
    driver.host[:64] = bytes(range(64))
    upload = driver.runner.upload(0, 64, 3)
    while not upload.done():
        pass
    launch = driver.runner.launch(StepPlan(0, (), moves=(Move(3, 9, 1),)))
    assert launch.ready() and launch.wait().tokens == ()
    assert torch.equal(driver.runner.page(9), driver.runner.page(3))


def test_bf16_serves_with_like_logits(model):
    """A model computed in bf16 stays near the fp32 one: rounding, not another model."""
    prompt = list(range(1, 30))
    single, half = (Driver.on(model.folder, dtype=dtype) for dtype in ("float32", "bfloat16"))
    rows = []
    for driver, dtype in ((single, torch.float32), (half, torch.bfloat16)):
        driver.put_adapter(0, model.adapters["r8"], dtype)
        sequence = driver.begin(prompt, 0)
        driver.step({sequence: len(prompt)})
        rows.append(driver.logits(sequence)[0])
    assert half.runner.page_bytes * 2 == single.runner.page_bytes
    assert torch.corrcoef(torch.stack(rows))[0, 1] > 0.99


@pytest.mark.parametrize("arena_bytes", [0, 5000])
def test_an_arena_without_room_is_refused_with_numbers(model, arena_bytes):
    config = runner_config(model.folder)
    config = replace(config, memory=MemoryConfig(arena_bytes, 0, page_tokens=4))
    with pytest.raises(UnsupportedModel, match=f"arena_bytes {arena_bytes} holds"):
        CpuRunner(config, None)


def test_pages_that_would_break_the_blocks_alignment_are_refused(model):
    config = runner_config(model.folder)
    config = replace(config, memory=MemoryConfig(1 << 20, 0, page_tokens=3))
    runner = CpuRunner(config, None)
    assert runner.page_bytes % 256 == 0
    with pytest.raises(ValueError, match="no host memory"):
        runner.upload(0, 4, 1)
