"""What the core tells of its tenants, counted apart."""

from __future__ import annotations

from collections import Counter

from engine.config import ScheduleConfig
from engine.tenant_load import MAX_TOLD
from engine.types import Tenant
from tests.support.world import World, config


def test_requests_and_lag_of_each_tenant() -> None:
    world = World(config(num_pages=200, schedule=ScheduleConfig(max_seqs=4, max_step_tokens=32)))
    for i in range(6):
        world.submit(f"a{i}", tenant=Tenant("a", weight=2.0), max_tokens=20)
    world.submit("b0", tenant="b", max_tokens=20)
    world.step()
    told = {load.tenant: load for load in world.engine.scheduler.stats(0.0).tenants}
    rows = Counter(span.sequence.tenant for span in world.device.plans[-1].spans)
    assert {t: load.num_running for t, load in told.items()} == rows and rows["a"] > 1
    assert told["a"].num_running + told["a"].num_waiting == 6
    assert (told["a"].weight, told["b"].weight) == (2.0, 1.0)
    accounts = world.engine.scheduler.accounts
    lag = accounts.standing("a") - accounts.standing("b")
    assert {load.lag for load in told.values()} == {0.0, abs(lag)}
    world.run()
    assert world.engine.scheduler.stats(0.0).tenants == ()


def test_of_very_many_tenants_those_that_run_are_told_and_those_whose_turn_is_next() -> None:
    num = MAX_TOLD + 50
    world = World(config(num_pages=200, schedule=ScheduleConfig(max_seqs=4, max_step_tokens=32)))
    world.checks = False
    for i in range(num):
        world.submit(f"r{i}", tenant=f"t{i}", max_tokens=30)
    world.step()
    world.step()
    told = world.engine.scheduler.stats(0.0).tenants
    assert MAX_TOLD <= len(told) <= MAX_TOLD + 4
    assert sum(load.num_running for load in told) == world.engine.scheduler.num_running == 4
