"""Who gets room on the device, who yields it, and that nobody starves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import AdapterConfig, ScheduleConfig
from tests.support.world import World, adapter, config


def schedule(depth: int = 0, **fields: float) -> ScheduleConfig:
    return replace(ScheduleConfig(max_seqs=8, max_step_tokens=32, depth=depth), **fields)


def two_places(**fields: float) -> World:
    """An arena with room for two adapters of seven pages beside one longest sequence."""
    settings = config(
        num_pages=1 + 64 + 15,
        max_model_len=256,
        schedule=schedule(max_seqs=6),
        adapters=AdapterConfig(min_residency_s=1.0, max_drain_s=fields.get("max_drain_s", 5.0)),
    )
    return World(settings, load_s=0.05)


def keep_busy(world: World, names: str, tenants: str, max_tokens: int) -> None:
    """Each of these adapters always has four requests that wait or run."""
    for name, tenant in zip(names, tenants, strict=True):
        open_ones = [
            n for n, a in world.answers.items() if n.startswith(f"{name}-") and a.finish is None
        ]
        for _ in range(4 - len(open_ones)):
            number = len(world.answers)
            ref = adapter(name, 7, tenant)
            world.submit(
                f"{name}-{number}", tenant=tenant, prompt=3, max_tokens=max_tokens, ref=ref
            )


@pytest.mark.parametrize("tenants", ["abc", "aaa"])
def test_a_third_adapter_gets_in_though_two_have_endless_queues_and_room_for_two(
    tenants: str,
) -> None:
    world = two_places()
    world.checks = False
    waits: list[float] = []
    for round_number in range(5):
        asked = world.clock() + 5.0
        while world.clock() < asked:
            keep_busy(world, "ab", tenants[:2], max_tokens=40)
            world.step()
        name = f"c{round_number}"
        world.submit(name, tenant=tenants[2], max_tokens=10, ref=adapter("c", 7, tenants[2]))
        while not world.answers[name].times:
            keep_busy(world, "ab", tenants[:2], max_tokens=40)
            world.step()
            assert world.clock() < asked + 10.0, "it starves"
        waits.append(world.answers[name].times[0] - asked)
    world.engine.scheduler.check()
    # Its turn comes once the others' accounts are ahead of it; then one of them drains.
    assert max(waits) < 3.0
    assert all(
        any(
            n.startswith(f"{name}-") and a.times and a.times[-1] > asked
            for n, a in world.answers.items()
        )
        for name in "ab"
    ), "those that yielded come back"


def test_four_adapters_of_one_tenant_take_turns_on_two_places() -> None:
    world = two_places()
    world.checks = False
    while world.clock() < 30.0:
        keep_busy(world, "abcd", "tttt", max_tokens=30)
        world.step()
    for name in "abcd":
        times = sorted(
            t for n, a in world.answers.items() if n.startswith(f"{name}-") for t in a.times
        )
        gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
        assert max([times[0], 30.0 - times[-1], *gaps]) < 8.0


def test_a_resident_keeps_its_place_for_min_residency() -> None:
    world = two_places()
    world.submit("a", tenant="a", max_tokens=60, prompt=3, ref=adapter("a", 7, "a"))
    world.submit("b", tenant="b", max_tokens=60, prompt=3, ref=adapter("b", 7, "b"))
    world.run_until(lambda: len(world.residency.device) == 2)
    resident_s = world.clock()
    world.submit("c", tenant="c", max_tokens=2, ref=adapter("c", 7, "c"))
    keep_busy(world, "ab", "ab", max_tokens=40)
    while world.clock() < resident_s + 0.95:
        world.step()
        keep_busy(world, "ab", "ab", max_tokens=40)
        assert len(world.residency.device) == 2
    world.run_until(lambda: bool(world.answers["c"].times))


def test_sequences_that_do_not_drain_in_time_are_preempted() -> None:
    world = two_places(max_drain_s=0.1)
    world.submit("oldest", tenant="a", max_tokens=20, prompt=3, ref=adapter("a", 7, "a"))
    world.step()
    for i in range(2):
        world.submit(f"b{i}", tenant="b", max_tokens=80, prompt=3, ref=adapter("b", 7, "b"))
    world.run_until(lambda: len(world.residency.device) == 2)
    world.clock.sleep(1.0)
    world.submit("c", tenant="c", max_tokens=2, ref=adapter("c", 7, "c"))
    world.run_until(lambda: bool(world.answers["c"].times), max_steps=40)
    assert world.engine.scheduler.stats(0.0).num_preemptions == 2
    world.run()
    assert all(len(world.answers[f"b{i}"].tokens) == 80 for i in range(2))


def test_an_adapter_gets_its_room_though_sequences_would_fill_all_of_it() -> None:
    """Endless base requests of the same tenant, which alone would take every page for ever."""
    world = World(config(num_pages=40, schedule=schedule(max_seqs=12)), load_s=0.05)
    world.checks = False
    number = 0
    while world.clock() < 3.0 or not world.answers["adapted"].times:
        while world.engine.scheduler.num_waiting < 10:
            world.submit(f"base{number}", prompt=7, max_tokens=2 + 5 * number % 7)
            number += 1
        if world.clock() > 1.0 and "adapted" not in world.answers:
            world.submit("adapted", prompt=5, max_tokens=2, ref=adapter("a", 20))
        world.step()
        assert world.clock() < 8.0, "it starves"
    world.engine.scheduler.check()


def test_an_idle_adapter_goes_before_one_in_use_and_the_dearest_to_bring_back_stays() -> None:
    world = World(config(num_pages=32, schedule=schedule()))
    slow, quick, used = adapter("slow", 5), adapter("quick", 5), adapter("used", 5)
    for ref, load_s in ((slow, 2.0), (quick, 0.01)):
        world.load_s = load_s
        world.submit(ref.name, ref=ref)
        world.run()
    world.submit("used", ref=used, max_tokens=50)
    world.run_until(lambda: used.key in world.residency.device)
    # Without their copies in host memory a return costs the whole load.
    world.submit("another", ref=adapter("another", 5), max_tokens=2)
    world.run_until(lambda: bool(world.answers["another"].times))
    assert len(world.residency.device) == 3
    assert used.key in world.residency.device
