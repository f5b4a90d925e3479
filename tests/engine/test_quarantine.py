"""An adapter whose output is not finite: its requests end one by one, then it is refused, and
nobody else notices."""

from __future__ import annotations

import pytest

from engine.config import AdapterConfig, ScheduleConfig
from engine.quarantine import Quarantine
from engine.types import FinishReason
from tests.support.world import World, adapter, config

BAD, GOOD = adapter("bad", tenant="a"), adapter("good", tenant="b")


@pytest.mark.parametrize("depth", [0, 1])
def test_after_three_faults_an_adapter_is_refused_and_its_tenant_told(depth: int) -> None:
    world = World(
        config(
            schedule=ScheduleConfig(max_seqs=4, max_step_tokens=64, depth=depth),
            adapters=AdapterConfig(permanent_failure_ttl_s=100.0),
        )
    )
    world.device.fails = lambda span: span.sequence.adapter_key == BAD.key
    for i in range(6):
        world.submit(f"bad{i}", tenant="a", ref=BAD, max_tokens=8)
    for i in range(2):
        world.submit(f"good{i}", tenant="b", ref=GOOD, max_tokens=8)
        world.submit(f"base{i}", tenant="a", max_tokens=8)
    world.run()
    world.submit("late", tenant="a", ref=BAD)
    world.step()
    errors = [world.answers[f"bad{i}"].error for i in range(6)] + [world.answers["late"].error]
    codes = [error.code for error in errors if error is not None]
    assert len(codes) == 7 and codes.count("not_finite") == 2
    assert codes[-1] == "adapter_quarantined" and codes.count("adapter_quarantined") == 5
    assert errors[-1] is not None and "'bad'" in errors[-1].message
    for i in range(2):
        for name in (f"good{i}", f"base{i}"):
            answer = world.answers[name]
            assert answer.finish is FinishReason.LENGTH and len(answer.tokens) == 8
    world.clock.sleep(101.0)
    world.device.fails = lambda span: False
    world.submit("forgiven", tenant="a", ref=BAD)
    world.run()
    assert world.answers["forgiven"].finish is FinishReason.LENGTH


def test_faults_long_apart_and_those_of_the_base_count_for_nobody() -> None:
    quarantine = Quarantine(max_faults=2, window_s=10.0)
    assert not quarantine.fault(BAD, 0.0)[1]
    assert not quarantine.fault(BAD, 11.0)[1]
    assert not quarantine.fault(GOOD, 11.5)[1]
    assert not any(quarantine.fault(None, 12.0)[1] for _ in range(5))
    error, is_last = quarantine.fault(BAD, 12.0)
    assert is_last and error.code == "adapter_quarantined"
    assert quarantine.fault(BAD, 12.5)[1], "one that still ran"
    assert not quarantine.fault(BAD, 30.0)[1]
