"""Adapters in turns on too little room, on a virtual clock: bounded waits, no cliff, no stalls."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import pytest

from engine.config import AccountConfig, AdapterConfig, ScheduleConfig
from engine.types import AdapterRef
from tests.support.world import World, adapter, config

STEP_S, UPLOAD_S, LOAD_S = 0.02, 0.005, 0.05
MIN_RESIDENCY_S, MAX_DRAIN_S = 1.0, 1.0
BOUND_S = 2 * MIN_RESIDENCY_S + 2 * MAX_DRAIN_S
"""Of one whose turn has come (`engine.adapters.yielding`); load and upload not counted."""


def world_of(num_adapters: int, pages: int, rows: int) -> World:
    """Room for so many adapters of `pages` pages, and for 256 tokens in each row beside them."""
    reserve = rows * 64
    settings = config(
        num_pages=1 + reserve + num_adapters * pages,
        max_model_len=4 * reserve,
        host_bytes=1 << 22,
        schedule=ScheduleConfig(max_seqs=rows, max_step_tokens=256),
        accounts=AccountConfig(default_output=16, locality_slack_tokens=16.0),
        adapters=AdapterConfig(min_residency_s=MIN_RESIDENCY_S, max_drain_s=MAX_DRAIN_S),
    )
    world = World(settings, load_s=LOAD_S, upload_s=UPLOAD_S, step_s=STEP_S)
    world.checks = False
    return world


@dataclass
class Clients:
    """A closed loop: each client asks for its next answer when it has the last one."""

    world: World
    num: int
    choose: Callable[[int], AdapterRef]
    max_tokens: Callable[[], int]
    count: int = 0

    def __post_init__(self) -> None:
        self.current: dict[int, tuple[str, float]] = {}
        self.waits: list[float] = []

    def turn(self) -> None:
        for client in range(self.num):
            name, asked_s = self.current.get(client, ("", 0.0))
            answer = self.world.answers.get(name)
            if answer is not None and answer.finish is None:
                continue
            if answer is not None:
                self.waits.append(answer.times[0] - asked_s)
                del self.world.answers[name]
            ref = self.choose(client)
            name = f"{ref.name}-{self.count}"
            self.count += 1
            self.current[client] = (name, self.world.clock())
            self.world.submit(
                name, tenant=ref.tenant, prompt=4, max_tokens=self.max_tokens(), ref=ref
            )

    def run(self, until_s: float) -> int:
        """Tokens that were produced meanwhile."""
        before = self.world.engine.scheduler.counters.output_tokens
        while self.world.clock() < until_s:
            self.turn()
            self.world.step()
        return self.world.engine.scheduler.counters.output_tokens - before


@pytest.mark.parametrize("tenants", ["abc", "aaa", "aab", "aba"])
@pytest.mark.parametrize("max_tokens", [20, 240])
def test_a_third_gets_in_within_its_bound_every_ten_seconds(tenants: str, max_tokens: int) -> None:
    """B-STARVE. The longest requests run 4.8 s: longer than they may drain."""
    world = world_of(2, 7, rows=6)
    refs = [adapter(name, 7, tenant) for name, tenant in zip("abc", tenants, strict=True)]
    clients = Clients(world, 8, lambda client: refs[client % 2], lambda: max_tokens)
    clients.run(5.0)
    waits = []
    for number in range(4):
        asked_s, name = world.clock(), f"third-{number}"
        world.submit(name, tenant=tenants[2], prompt=4, max_tokens=10, ref=refs[2])
        while not world.answers[name].times:
            clients.turn()
            world.step()
            assert world.clock() < asked_s + 30.0, "it starves"
        waits.append(world.answers[name].times[0] - asked_s)
        clients.run(asked_s + 10.0)
    world.engine.scheduler.check()
    # Until the accounts of those that run are ahead of its own: at most one answer of each row.
    ahead_s = max_tokens * STEP_S if tenants != "aaa" else 0.0
    assert max(waits) <= BOUND_S + LOAD_S + UPLOAD_S + ahead_s + 5 * STEP_S
    assert max(clients.waits[-8:]) < 20.0, "those that yielded come back"


def throughput(
    num_resident: int, num_adapters: int = 64, seconds: float = 8.0
) -> tuple[float, float]:
    """(tokens a second, longest wait for a first token) of uniform traffic, four clients a row."""
    world = world_of(num_resident, 2, rows=16)
    rng = random.Random(7)
    refs = [adapter(f"a{i}", 2, f"t{i % 8}") for i in range(num_adapters)]
    clients = Clients(world, 64, lambda _: rng.choice(refs), lambda: rng.randint(8, 40))
    clients.run(3.0)
    clients.waits.clear()
    tokens = clients.run(3.0 + seconds)
    world.engine.scheduler.check()
    return tokens / seconds, max(clients.waits)


def test_a_working_set_of_four_times_the_room_is_no_cliff_and_nobody_starves() -> None:
    all_resident, wait_s = throughput(64)
    for num_resident in (32, 16, 8):
        rate, longest_s = throughput(num_resident)
        assert rate >= 0.6 * all_resident, f"room for {num_resident} of 64"
        assert longest_s <= 2 * wait_s + BOUND_S


def test_twice_as_many_adapters_as_places_in_turn_neither_wait_long_nor_stall_others() -> None:
    """B-COLD-STALL: 16 adapters in turn over 8 places, four requests a second."""
    world = world_of(8, 4, rows=16)
    refs = [adapter(f"a{i}", 4, f"t{i}") for i in range(16)]
    world.submit("base", tenant="base", prompt=4, max_tokens=1500)
    asked: dict[str, float] = {}
    while world.clock() < 25.0:
        if world.clock() >= 0.25 * len(asked):
            ref, name = refs[len(asked) % 16], f"r{len(asked)}"
            asked[name] = world.clock()
            world.submit(name, tenant=ref.tenant, prompt=4, max_tokens=50, ref=ref)
        world.step()
    world.run()
    waits = [world.answers[name].times[0] - asked_s for name, asked_s in asked.items()]
    first, later = waits[:16], waits[16:]
    assert max(first) <= LOAD_S + UPLOAD_S + 5 * STEP_S, "the first time each is loaded"
    assert median(later) <= UPLOAD_S + 3 * STEP_S and max(later) <= UPLOAD_S + 6 * STEP_S
    times = world.answers["base"].times
    assert max(b - a for a, b in zip(times, times[1:], strict=False)) <= STEP_S + 0.002
    assert len(world.loads) == 16, "host memory keeps what the device can't"
    arrivals = dict(world.engine.scheduler.stats(0.0).arrivals)
    assert arrivals == {"cold": 16, "host": len(asked) - 16}


def test_an_adapter_as_large_as_all_the_room_gets_in_among_small_ones_that_come_and_go() -> None:
    """Whoever is small enough for what comes free would overtake it for ever."""
    world = world_of(8, 2, rows=8)
    rng = random.Random(3)
    small = [adapter(f"s{i}", 2, f"t{i}") for i in range(24)]
    clients = Clients(world, 16, lambda _: rng.choice(small), lambda: rng.randint(5, 30))
    clients.run(4.0)
    large = adapter("large", 16, "t-large")
    for number in range(3):
        asked_s, name = world.clock(), f"large-{number}"
        world.submit(name, tenant="t-large", prompt=4, max_tokens=5, ref=large)
        while not world.answers[name].times:
            clients.turn()
            world.step()
            assert world.clock() < asked_s + 30.0, "it starves"
        wait_s = world.answers[name].times[0] - asked_s
        assert wait_s <= BOUND_S + LOAD_S + UPLOAD_S + 30 * STEP_S
        clients.run(world.clock() + 4.0)
    world.engine.scheduler.check()
