"""Whatever is asked of the tiers, in any order: nothing is lost, stuck or kept for ever."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.adapters.cache import Tier
from engine.adapters.retired import MARK_S
from engine.config import AdapterConfig, ScheduleConfig
from engine.errors import AdapterUnavailable
from engine.messages import Drop, Pin, Prefetch, SetPins
from engine.types import FinishReason, Tenant
from tests.support.world import PAGE_BYTES, World, adapter, config

PAGES = {"a": 1, "b": 3, "c": 5, "d": 2, "e": 4, "f": 6, "g": 2, "broken": 2}
OWNERS = dict(zip(PAGES, "ttuuvvtv", strict=True))
REFS = {name: adapter(name, pages, OWNERS[name]) for name, pages in PAGES.items()}
TENANTS = {
    "t": Tenant("t"),
    "u": Tenant("u", max_device_bytes=6 * PAGE_BYTES, max_host_bytes=3 * 4096),
    "v": Tenant("v", weight=2.0, max_device_bytes=PAGE_BYTES, max_host_bytes=1),
}
names = st.sampled_from(sorted(PAGES))


class Tiers(RuleBasedStateMachine):
    @initialize(
        depth=st.integers(0, 1),
        device_pages=st.sampled_from([6, 9, 16]),
        host_blocks=st.sampled_from([3, 6, 20]),
        load_s=st.sampled_from([0.0, 0.03]),
        upload_s=st.sampled_from([0.0, 0.025]),
    )
    def start(
        self, depth: int, device_pages: int, host_blocks: int, load_s: float, upload_s: float
    ) -> None:
        self.world = World(
            config(
                num_pages=1 + 16 + device_pages,
                host_bytes=host_blocks * 4096,
                schedule=ScheduleConfig(max_seqs=4, max_step_tokens=16, depth=depth),
                adapters=AdapterConfig(
                    max_loads=2, min_residency_s=0.1, max_drain_s=0.1, failure_ttl_s=0.2
                ),
            ),
            load_s=load_s,
            upload_s=upload_s,
            fails=lambda ref: AdapterUnavailable("gone").info() if ref.name == "broken" else None,
        )
        self.pins: dict[str, bool] = {}
        self.kept: set[str] = set()
        self.last_drop_s: dict[str, float] = {}
        self.last_ask_s: dict[str, float] = {}

    @rule(name=names, max_tokens=st.integers(1, 30), prompt=st.integers(1, 20))
    def ask(self, name: str, max_tokens: int, prompt: int) -> None:
        self.last_ask_s[name] = self.world.clock()
        self.world.submit(
            f"r{len(self.world.answers)}",
            tenant=TENANTS[OWNERS[name]],
            prompt=prompt,
            max_tokens=max_tokens,
            ref=REFS[name],
        )

    @rule(number=st.integers(0, 30))
    def give_up(self, number: int) -> None:
        self.world.engine.abort(f"r{number}")

    @rule(name=names, to_device=st.booleans(), is_ordered=st.booleans(), knows=st.booleans())
    def prefetch(self, name: str, to_device: bool, is_ordered: bool, knows: bool) -> None:
        self.last_ask_s[name] = self.world.clock()
        tenant = TENANTS[OWNERS[name]] if knows else None
        self.world.engine.deliver(Prefetch(REFS[name], to_device, is_ordered, tenant))

    @rule(pins=st.dictionaries(names, st.booleans(), max_size=3))
    def pin(self, pins: dict[str, bool]) -> None:
        self.pins = pins
        self.last_ask_s.update(dict.fromkeys(pins, float("inf")))
        self.kept = {name for name in self.kept if name in pins and pins[name]}
        self.world.engine.deliver(SetPins(tuple(Pin(REFS[n], on) for n, on in pins.items())))

    @rule(name=names, now=st.booleans())
    def retire(self, name: str, now: bool) -> None:
        self.world.engine.deliver(Drop(REFS[name], now))
        self.last_drop_s[name] = self.world.clock()
        self.kept.discard(name)
        self.pins.pop(name, None)

    @rule(turns=st.integers(1, 12))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.world.step()
            self.see_pins()

    @rule(seconds=st.sampled_from([0.05, 0.5, 6.0]))
    def wait(self, seconds: float) -> None:
        self.world.clock.sleep(seconds)

    def see_pins(self) -> None:
        """What is pinned on the device, once it is there, stays until it is unpinned or retired."""
        table = self.world.residency
        assert self.kept <= {key_name(key) for key in table.device}
        pinned = {key_name(key) for key in table.pinned}
        assert pinned <= self.pins.keys()
        self.kept |= {name for name in pinned if self.pins[name]}

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.engine.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.run()
        world.clock.sleep(MARK_S)
        for _ in range(20):
            world.step()
            world.run()
        scheduler = world.engine.scheduler
        assert scheduler.num_running == scheduler.num_waiting == 0
        assert all(answer.finish is not None for answer in world.answers.values())
        for name, answer in world.answers.items():
            if answer.finish is FinishReason.ERROR:
                assert answer.error is not None
                known = {"adapter_unavailable", "no_room_beside_pins", "adapter_retired"}
                assert answer.error.code in {*known, "adapter_too_large"}, name
        discarded = {discard.ref.name for discard in world.discards}
        assert discarded == self.last_drop_s.keys(), "each retired version leaves the disk, too"
        for name, dropped_s in self.last_drop_s.items():
            if self.last_ask_s.get(name, 0.0) <= dropped_s:
                assert scheduler.cache.tier(REFS[name]) is Tier.COLD


def key_name(key: str) -> str:
    return key.partition("/digest-")[2]


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=40, stateful_step_count=40)
