"""Each number that operators look at, against a count of our own, on a virtual clock."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from engine.config import AdapterConfig, EngineConfig, ScheduleConfig
from engine.errors import AdapterUnavailable
from engine.histogram import ADAPTERS, SECONDS, STEP_SECONDS, Counts, Histogram
from engine.messages import Pin, Prefetch, SetPins
from engine.types import AdapterRef
from tests.support.device_model import ModelUpload
from tests.support.measuring_cost import measure
from tests.support.world import World, adapter, config

STEP_S, LOAD_S, UPLOAD_S = 0.01, 0.03, 0.012


def counted(bounds: tuple[float, ...], values: list[float]) -> Counts:
    """By comparing every value with every bound."""
    edges = [*bounds, float("inf")]
    cumulative = [sum(value <= edge for value in values) for edge in edges]
    each = [a - b for a, b in zip(cumulative, [0, *cumulative], strict=False)]
    return Counts(tuple(each), pytest.approx(sum(values)))


@dataclass(frozen=True)
class Arrival:
    at_s: float
    tier: str
    ref: AdapterRef | None
    tenant: str


class Witness:
    """Looks at the plans that reach the device, at uploads and at what is told of residency, and
    counts for itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.arrivals: dict[str, Arrival] = {}
        self.first_run_s: dict[str, float] = {}
        self.stalls: list[float] = []
        self.adapters: list[float] = []
        self.num_moves = self.num_evicted = 0
        self.begins: Counter[str] = Counter()
        self._num_plans = 0
        self._landed: list[ModelUpload] = []

    def submit(self, name: str, ref: AdapterRef | None, tenant: str, **what: int) -> None:
        places = self.world.residency
        tier = "none"
        if ref is not None:
            on_host = "host" if ref.key in places.host else "cold"
            tier = "device" if ref.key in places.device else on_host
        self.arrivals[name] = Arrival(self.world.clock(), tier, ref, tenant)
        self.world.submit(name, tenant=tenant, ref=ref, **what)

    def step(self) -> None:
        world, device = self.world, self.world.device
        now = world.clock()
        landed = [u for u in device.begun if u.done() and all(u is not x for x in self._landed)]
        come = {device.memory[upload.pages[0]][0] for upload in landed}
        self._landed += landed
        before = set(world.residency.device)
        world.step()
        self.num_evicted += len(before - set(world.residency.device))
        for plan in device.plans[self._num_plans :]:
            self._look(plan, now, come)
        self._num_plans = len(device.plans)

    def _look(self, plan, now: float, come: set[str]) -> None:
        if plan.spans or plan.moves:
            keys = {s.sequence.request.adapter for s in plan.spans} - {None}
            self.adapters.append(len(keys))
        self.num_moves += len(plan.moves)
        for span in plan.spans:
            name = span.sequence.request.id
            self.begins[name] += span.row in plan.new_rows
            if name not in self.first_run_s:
                self.first_run_s[name] = now
                arrival = self.arrivals[name]
                if arrival.ref is not None and arrival.ref.key in come:
                    self.stalls.append(now - arrival.at_s)

    def run(self) -> None:
        scheduler = self.world.engine.scheduler
        while scheduler.num_running or scheduler.num_waiting or not self.world.engine.idle:
            self.step()
        self.world.clock.sleep(1.1)
        self.step()

    def queue_s(self) -> dict[tuple[str, AdapterRef | None], list[float]]:
        waits: dict[tuple[str, AdapterRef | None], list[float]] = {}
        for name, at_s in self.first_run_s.items():
            arrival = self.arrivals[name]
            waits.setdefault((arrival.tenant, arrival.ref), []).append(at_s - arrival.at_s)
        return waits


def told_queue_s(world: World) -> dict[tuple[str, AdapterRef | None], list[float]]:
    waits: dict[tuple[str, AdapterRef | None], list[float]] = {}
    for measures in world.measures:
        for tenant, ref, seconds in measures.queue_s:
            waits.setdefault((tenant, ref), []).extend(seconds)
    return waits


def crowded(depth: int) -> EngineConfig:
    """Room for about three of eight adapters, and for fewer rows than ask."""
    return config(
        num_pages=1 + 16 + 10,
        host_bytes=5 * 4096,
        schedule=ScheduleConfig(max_seqs=4, max_step_tokens=32, depth=depth),
        adapters=AdapterConfig(max_loads=2, min_residency_s=0.05, max_drain_s=0.05),
    )


@pytest.mark.parametrize("depth", [0, 1])
def test_every_count_of_a_crowded_replica_is_what_a_witness_counts(depth: int) -> None:
    rng = random.Random(3)
    world = World(crowded(depth), load_s=LOAD_S, upload_s=UPLOAD_S, step_s=STEP_S)
    world.checks = False
    witness = Witness(world)
    refs = [adapter(f"a{i}", 1 + i % 4, "tuv"[i % 3]) for i in range(8)]
    for number in range(150):
        ref = rng.choice([*refs, None])
        tenant = "tuv"[rng.randrange(3)] if ref is None else ref.tenant
        what = {"prompt": rng.randint(1, 30), "max_tokens": rng.randint(1, 16)}
        witness.submit(f"r{number}", ref, tenant, **what)
        for _ in range(rng.randrange(6)):
            witness.step()
    witness.run()

    told, stats = world.measures[-1], world.stats[-1]
    assert told.adapters == counted(ADAPTERS, witness.adapters)
    assert told.step_s == counted(STEP_SECONDS, [STEP_S] * len(witness.adapters))
    assert told.stall_s == counted(SECONDS, witness.stalls)
    assert told_queue_s(world) == {k: pytest.approx(v) for k, v in witness.queue_s().items()}
    tiers = Counter(a.tier for a in witness.arrivals.values() if a.ref is not None)
    assert dict(stats.arrivals) == dict(tiers)
    preempted = sum(witness.begins.values()) - len(witness.begins)
    assert stats.num_preemptions == preempted
    assert stats.num_moves == witness.num_moves
    assert told.num_evicted == witness.num_evicted
    assert stats.num_evictions == told.num_evicted + told.num_prefixes_evicted
    assert sum(n for *_, n in told.loads) == len(world.loads) == stats.num_loads
    assert dict(told.load_s)["store"] == counted(SECONDS, [LOAD_S] * len(world.loads))
    misses = tiers["cold"] + tiers["host"]
    assert 0 < len(witness.stalls) < misses, "some misses cost nothing, since others held them up"
    assert min(tiers[tier] for tier in ("cold", "host", "device")) > 5
    assert preempted and witness.num_moves and witness.num_evicted


def test_a_miss_behind_a_full_replica_is_no_stall() -> None:
    one_row = config(schedule=ScheduleConfig(max_seqs=1, max_step_tokens=64))
    world = World(one_row, load_s=LOAD_S, upload_s=UPLOAD_S, step_s=STEP_S)
    witness = Witness(world)
    witness.submit("alone", adapter("a"), "t", prompt=4, max_tokens=30)
    witness.step()
    while not world.answers["alone"].tokens:
        witness.step()
    witness.submit("behind", adapter("b"), "t", prompt=4, max_tokens=1)
    witness.run()
    told = world.measures[-1]
    assert told.stall_s.num == 1 and told.stall_s.total == pytest.approx(witness.stalls[0])
    assert LOAD_S + UPLOAD_S <= told.stall_s.total <= LOAD_S + UPLOAD_S + 0.005
    assert dict(world.stats[-1].arrivals) == {"cold": 2}
    (wait_a,), (wait_b,) = told_queue_s(world).values()
    assert wait_a == pytest.approx(told.stall_s.total) and wait_b > 20 * STEP_S


def test_loads_by_what_they_were_for_and_how_they_ended() -> None:
    fails = lambda ref: AdapterUnavailable("gone").info() if ref.name == "bad" else None  # noqa: E731
    world = World(config(), load_s=LOAD_S, fails=fails)
    world.engine.deliver(Prefetch(adapter("hinted")))
    world.engine.deliver(Prefetch(adapter("ordered"), is_ordered=True))
    world.engine.deliver(SetPins((Pin(adapter("pinned"), on_device=False),)))
    for name in ("asked", "bad"):
        world.submit(name, ref=adapter(name))
    world.run()
    world.clock.sleep(1.1)
    world.step()
    assert sorted(world.measures[-1].loads) == [
        ("store", "hint", "ok", 1),
        ("store", "order", "ok", 2),
        ("store", "request", "adapter_unavailable", 1),
        ("store", "request", "ok", 1),
    ]
    assert world.measures[-1].upload_s.num == 3, "the pin is for host memory"


def test_what_the_arena_holds() -> None:
    world = World(config(num_pages=1 + 16 + 3), load_s=LOAD_S)
    ref = adapter("a", num_pages=3)
    ref = replace(ref, num_elements=ref.num_elements - 100)
    world.submit("a", ref=ref, prompt=6, max_tokens=50)
    world.run_until(lambda: len(world.answers["a"].tokens) >= 3)
    world.clock.sleep(1.1)
    world.step()
    told, stats = world.measures[-1], world.stats[-1]
    assert (told.num_adapters, told.adapter_pages) == (1, 3)
    assert told.sequence_pages == -(-len(world.answers["a"].tokens + [0] * 6) // 4)
    assert stats.rounding_bytes == 4 * 100
    assert total_pages(world) == stats.num_pages


def test_cached_pages_that_made_way_are_those_that_are_missing() -> None:
    """Each prompt leaves two full pages; nobody comes back for them."""
    world = World(config(num_pages=1 + 16))
    for number in range(12):
        world.submit(f"r{number}", prompt=8, max_tokens=1)
        world.run()
    world.clock.sleep(1.1)
    world.step()
    told = world.measures[-1]
    assert told.num_prefixes_evicted == 12 * 2 - told.cached_pages > 0
    assert total_pages(world) == world.stats[-1].num_pages


def total_pages(world: World) -> int:
    told, stats = world.measures[-1], world.stats[-1]
    used = told.adapter_pages + told.cached_pages + told.sequence_pages
    return 1 + used + stats.free_pages


def test_a_version_refused_for_its_answers_is_counted_once() -> None:
    world = World(config(adapters=AdapterConfig(max_faults=2)))
    world.device.fails = lambda span: span.sequence.adapter_key is not None
    for number in range(5):
        world.submit(f"r{number}", ref=adapter("bad"), max_tokens=2)
    world.run()
    world.clock.sleep(1.1)
    world.step()
    assert world.measures[-1].num_quarantined == 1


def test_the_lag_between_accounts_is_that_of_tenants_who_wait() -> None:
    """18: the prompt's 10 tokens and twice the 4 that were declared. `idle` has nothing waiting."""
    world = World(config(schedule=ScheduleConfig(max_seqs=2, max_step_tokens=64)))
    world.submit("first", tenant="t", prompt=10, max_tokens=4)
    world.submit("only", tenant="idle", prompt=50, max_tokens=4)
    world.submit("second", tenant="t", prompt=10, max_tokens=4)
    world.submit("other", tenant="u", prompt=10, max_tokens=4)
    world.step()
    assert world.engine.scheduler.num_running == 2
    assert world.measures[0].account_lag == 18.0


def test_where_nothing_is_measured_nothing_is_counted() -> None:
    world = World(replace(config(), measures=False))
    world.submit("r", ref=adapter("a"))
    world.run()
    world.clock.sleep(1.1)
    world.step()
    assert world.stats and not world.measures and world.engine.scheduler.measuring is None


def test_a_histogram_counts_every_value_once() -> None:
    histogram, values = Histogram((1.0, 2.0)), [0.5, 1.0, 1.5, 2.0, 2.5, 100.0]
    for value in values:
        histogram.add(value)
    assert histogram.read() == counted((1.0, 2.0), values) and histogram.read().num == 6


def test_counting_costs_a_hundredth_of_a_step_at_most() -> None:
    """Of a GPU's, 9 ms with 256 rows; here five times that, on a machine that does other things."""
    cost = measure(num_steps=200)
    assert cost["num_adapters"] == 64
    assert cost["counting_us"] < 5 * 90
