"""What is measured at the start is what the passes cost."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig, MemoryConfig, ModelConfig, ScheduleConfig, StoreConfig
from engine.fake_runner import FakeRunner
from engine.pass_costs import PassCosts
from engine.rehearsal import Rehearsal
from tests.support.virtual import VirtualClock

PASSES = PassCosts(
    ((64, 0.005), (128, 0.006), (512, 0.009)), ((1, 0.004), (16, 0.0045)), 1e-6, 5e-7
)


@pytest.mark.parametrize("max_len", [40, 512])
@pytest.mark.parametrize("arena_bytes", [1 << 20, 1 << 24])
def test_the_costs_of_a_device_are_found(max_len: int, arena_bytes: int) -> None:
    clock = VirtualClock()
    config = EngineConfig(
        ModelConfig("", "fake", max_model_len=max_len),
        MemoryConfig(arena_bytes, 1 << 20, 16),
        StoreConfig("file:///nowhere", "/nowhere"),
        ScheduleConfig(max_seqs=16),
    )
    runner = FakeRunner(config, clock, clock.sleep, passes=PASSES)
    rehearsal = Rehearsal(runner, runner.num_pages, 16, max_len)
    found = rehearsal.measure((1, 16), (64, 128, 512))
    for of, expected in ((found.mixed, PASSES.mixed), (found.decode, PASSES.decode)):
        assert [n for n, _ in of] == [n for n, _ in expected]
        assert [s for _, s in of] == pytest.approx([s for _, s in expected])
    assert found.mixed_read_s == pytest.approx(1e-6)
    assert found.decode_read_s == pytest.approx(5e-7)
