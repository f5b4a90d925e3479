"""What each tenant has used, against counts made from what went in and what came out."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from engine.config import ScheduleConfig
from engine.messages import Abort
from engine.types import Tenant
from engine.usage import MAX_IDLE_TOLD, ByteSeconds, TenantUsage, UsageBook
from tests.support.world import PAGE_BYTES, World, adapter, config

STEP_S = 0.01
TENANTS = ("a", "b", "c")


def schedule(depth: int) -> ScheduleConfig:
    return ScheduleConfig(max_seqs=8, max_step_tokens=64, depth=depth)


def usage_of(world: World) -> dict[str, TenantUsage]:
    world.engine.scheduler.stats(world.clock())
    return {u.tenant: u for u in world.engine.scheduler.counters.usage.all()}


def device_s(world: World) -> float:
    """Of all steps; one that only moves pages is nobody's."""
    steps = [plan.num_tokens for plan in world.device.plans if plan.spans]
    return STEP_S * len(steps) + world.device.token_s * sum(steps)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_sum_over_tenants_is_the_whole_and_each_part_its_own(depth: int) -> None:
    """Random traffic that shares prefixes, is preempted, aborted, and takes turns with adapters."""
    rng = random.Random(5)
    world = World(config(num_pages=30, schedule=schedule(depth)), step_s=STEP_S)
    world.device.token_s = STEP_S / 20
    refs = [adapter(f"{tenant}{i}", 2 + i, tenant) for tenant in TENANTS for i in range(3)]
    prompts: dict[str, int] = defaultdict(int)
    byte_s: dict[str, float] = defaultdict(float)
    for number in range(60):
        tenant = rng.choice(TENANTS)
        ref = rng.choice([None, *(r for r in refs if r.tenant == tenant)])
        prompt = tuple(range(rng.randint(1, 30)))
        prompts[tenant] += len(prompt)
        name = f"{tenant}-{number}"
        world.submit(name, tenant=tenant, prompt=prompt, max_tokens=rng.randint(1, 20), ref=ref)
        for _ in range(rng.randint(0, 8)):
            before_s = world.clock()
            world.step()
            for key in world.residency.device:
                (size,) = (r.num_elements * 4 for r in refs if r.key == key)
                byte_s[key.partition("/")[0]] += size * (world.clock() - before_s)
        if number % 10 == 9:
            world.engine.deliver(Abort(name))
    world.run()
    usage, scheduler = usage_of(world), world.engine.scheduler
    counters = scheduler.counters
    assert counters.num_preemptions and set(usage) == set(TENANTS)
    assert sum(u.output_tokens for u in usage.values()) == counters.output_tokens
    assert sum(u.device_s for u in usage.values()) == pytest.approx(device_s(world))
    for tenant, used in usage.items():
        answers = [a for name, a in world.answers.items() if name.startswith(tenant)]
        assert used.output_tokens == sum(len(a.tokens) for a in answers)
        assert used.cached_tokens == sum(sum(a.num_cached) for a in answers) > 0
        assert used.loaded_bytes == sum(
            load.num_bytes for load in world.loads if load.ref.tenant == tenant
        )
        assert used.prompt_tokens <= prompts[tenant] and used.num_requests <= len(answers)
        assert used.device_byte_s >= byte_s[tenant] > 0
        assert used.host_byte_s > 0


def test_a_steps_time_is_divided_by_rows_where_all_decode() -> None:
    world = World(config(), step_s=STEP_S)
    for name, tenant in (("r0", "a"), ("r1", "b"), ("r2", "b"), ("r3", "b")):
        world.submit(name, tenant=tenant, prompt=(ord(name[1]),), max_tokens=40)
    world.run()
    usage = usage_of(world)
    assert usage["b"].device_s == pytest.approx(3 * usage["a"].device_s)
    assert usage["a"].device_s == pytest.approx(40 * STEP_S / 4)


def test_who_hangs_up_while_its_prompt_is_read_pays_for_that_and_it_is_told() -> None:
    world = World(config(schedule=schedule(1)), step_s=STEP_S)
    world.device.token_s = STEP_S / 2
    for number, tenant in enumerate("aabab"):
        world.submit(f"r{number}", tenant=tenant, prompt=10 * number + 5)
        world.run()
    scheduler = world.engine.scheduler
    world.submit("gone", tenant="b", prompt=60)
    world.step()
    world.engine.deliver(Abort("gone"))
    early = scheduler.stats(world.clock())  # its step is under way still
    world.run()
    told: dict[str, float] = {}
    for stats in (*world.stats, early, scheduler.stats(world.clock())):
        for used in stats.usage:
            told[used.tenant] = max(told.get(used.tenant, 0.0), used.device_s)
    assert sum(told.values()) == pytest.approx(device_s(world))


def test_bytes_times_the_time_that_they_are_there() -> None:
    held = ByteSeconds()
    held.pass_time(10.0)
    held.add("a", 100)
    held.pass_time(12.0)
    held.add("a", 50)
    held.pass_time(13.0)
    assert held.of("a") == 100 * 2 + 150 * 1 and held.of("b") == 0
    held.add("a", -150)
    held.pass_time(99.0)
    assert held.of("a") == 350 and not list(held.holders())


def test_an_adapter_that_nobody_uses_goes_on_taking_room() -> None:
    world = World(config(), step_s=STEP_S)
    world.submit("r", tenant=Tenant("a"), ref=adapter("a", 3, "a"))
    world.run()
    before, now = usage_of(world)["a"], world.clock()
    world.clock.sleep(10.0)
    after = usage_of(world)["a"]
    size = 3 * PAGE_BYTES
    assert after.device_byte_s - before.device_byte_s == pytest.approx(10 * size)
    assert after.host_byte_s - before.host_byte_s == pytest.approx(10 * size)
    assert world.clock() == now + 10.0 and after.device_s == before.device_s


def test_what_the_last_adapter_took_is_told_when_it_has_left_a_tier() -> None:
    host, device = ByteSeconds(), ByteSeconds()
    book = UsageBook(host, device)
    for tier in (host, device):
        tier.add("a", 100)
    book.take_changes([])
    for tier in (host, device):
        tier.pass_time(7.0)
        tier.add("a", -100)
        tier.pass_time(9.0)
    (told,) = book.take_changes([])
    assert (told.tenant, told.host_byte_s, told.device_byte_s) == ("a", 700, 700)
    assert book.take_changes([]) == ()


def test_changes_are_told_once_and_thousands_whose_adapters_only_lie_there_take_turns() -> None:
    host, device = ByteSeconds(), ByteSeconds()
    book = UsageBook(host, device)
    for number in range(2 * MAX_IDLE_TOLD):
        host.add(f"t{number}", 1)
    book.of("busy").output_tokens += 1
    told = [{u.tenant for u in book.take_changes(["runs"])} for _ in range(3)]
    assert "busy" in told[0] and "busy" not in told[1] and all("runs" in names for names in told)
    assert all(len(names) <= MAX_IDLE_TOLD + 2 for names in told)
    assert len(told[0] | told[1]) == 2 * MAX_IDLE_TOLD + 2
