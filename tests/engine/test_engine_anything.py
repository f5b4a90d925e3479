"""Whatever happens to an engine, each request ends once and nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.adapters.cache import Tier
from engine.config import AdapterConfig
from engine.errors import AdapterUnavailable
from engine.fake_runner import counter_token
from engine.messages import Prefetch
from engine.plan import Span
from engine.types import FinishReason, Tenant
from tests.support.world import World, adapter, assert_nothing_is_held, config, expected, schedule

STOP = 7


TENANTS = [Tenant("t"), Tenant("u", weight=2.0), Tenant("v", weight=0.5)]
ADAPTERS = [
    adapter("a", 1, "t"),
    adapter("b", 5, "t"),
    adapter("c", 9, "u"),
    adapter("d", 3, "u"),
    adapter("e", 2, "v"),
    adapter("broken", 2, "v"),
]


@dataclass(frozen=True)
class Arrival:
    tenant: int
    prompt: int
    shared: int
    max_tokens: int
    adapter: int
    stops_at: int
    fails_at: int


arrivals = st.builds(
    Arrival,
    tenant=st.integers(0, 2),
    prompt=st.integers(1, 30),
    shared=st.integers(0, 2),
    max_tokens=st.integers(1, 20),
    adapter=st.integers(-2, len(ADAPTERS) - 1),
    stops_at=st.integers(0, 40),
    fails_at=st.integers(0, 120),
)
turns = st.integers(1, 12)
aborts = st.tuples(st.just("abort"), st.integers(0, 40))
prefetches = st.tuples(st.just("prefetch"), st.integers(0, len(ADAPTERS) - 1))
pauses = st.tuples(st.just("pause"), st.sampled_from([0.01, 0.3, 2.0]))
programs = st.lists(st.one_of(arrivals, arrivals, turns, aborts, prefetches, pauses), max_size=60)


class Script:
    """Runs a program of arrivals and other events, and knows what every request must be told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.arrivals: dict[str, Arrival] = {}
        self.aborted: set[str] = set()
        world.device.draw = self.draw
        world.device.fails = self.is_failing

    def draw(self, span: Span) -> int:
        index = span.start + span.num_tokens - len(span.sequence.request.prompt)
        is_stop = index == self.arrivals[span.sequence.id].stops_at
        return STOP if is_stop else counter_token(span)

    def is_failing(self, span: Span) -> bool:
        index = span.start + span.num_tokens - len(span.sequence.request.prompt)
        return index == self.arrivals[span.sequence.id].fails_at

    def play(self, event: object) -> None:
        world = self.world
        if isinstance(event, Arrival):
            name = f"r{len(self.arrivals)}"
            self.arrivals[name] = event
            ref = ADAPTERS[event.adapter] if event.adapter >= 0 else None
            prompt = tuple(1000 * event.shared + i for i in range(event.prompt))
            tenant = TENANTS[event.tenant]
            world.submit(
                name,
                tenant=tenant,
                prompt=prompt,
                max_tokens=event.max_tokens,
                ref=ref,
                stop=(STOP,),
            )
        elif isinstance(event, int):
            for _ in range(event):
                world.step()
        else:
            match event:
                case ("abort", int(number)):
                    name = f"r{number}"
                    answer = world.answers.get(name)
                    if answer is not None and answer.finish is None:
                        self.aborted.add(name)
                    world.engine.abort(name)
                case ("prefetch", int(number)):
                    world.engine.deliver(Prefetch(ADAPTERS[number]))
                case ("pause", float(seconds)):
                    world.clock.sleep(seconds)
            world.engine.scheduler.check()

    def check(self, name: str) -> None:
        arrival, answer = self.arrivals[name], self.world.answers[name]
        num_tokens = min(arrival.max_tokens, arrival.stops_at, arrival.fails_at)
        tokens = expected(arrival.prompt, num_tokens)
        if answer.finish is FinishReason.ABORT:
            assert name in self.aborted
            assert answer.tokens == tokens[: len(answer.tokens)]
        elif answer.error is not None and answer.error.code == "adapter_unavailable":
            assert ADAPTERS[arrival.adapter].name == "broken" and not answer.tokens
        else:
            assert answer.tokens == tokens
            if num_tokens == arrival.max_tokens:
                assert answer.finish is FinishReason.LENGTH
            elif arrival.fails_at <= arrival.stops_at:
                assert answer.finish is FinishReason.ERROR
            else:
                assert answer.finish is FinishReason.STOP
        assert sum(answer.num_cached[1:]) == 0


@settings(max_examples=60)
@given(
    program=programs,
    depth=st.integers(0, 2),
    num_pages=st.sampled_from([28, 34, 60]),
    max_move_pages=st.sampled_from([1, 4, 64]),
    host_pages=st.sampled_from([12, 64]),
    load_s=st.sampled_from([0.0, 0.015, 0.2]),
    upload_s=st.sampled_from([0.0, 0.025]),
    prefix_cache=st.booleans(),
)
def test_whatever_happens_each_request_ends_once_and_nothing_is_lost(
    program: list[object],
    depth: int,
    num_pages: int,
    max_move_pages: int,
    host_pages: int,
    load_s: float,
    upload_s: float,
    prefix_cache: bool,
) -> None:
    world = World(
        config(
            num_pages=num_pages,
            max_model_len=64,
            max_move_pages=max_move_pages,
            host_bytes=host_pages * 4096,
            schedule=schedule(depth, prefix_cache=prefix_cache),
            adapters=AdapterConfig(
                max_loads=2, min_residency_s=0.1, max_drain_s=0.2, failure_ttl_s=0.1
            ),
        ),
        load_s=load_s,
        upload_s=upload_s,
        fails=lambda ref: AdapterUnavailable("gone").info() if ref.name == "broken" else None,
    )
    script = Script(world)
    for event in program:
        script.play(event)
    world.run()
    for name in script.arrivals:
        script.check(name)
    assert_nothing_is_held(world)
    tiers = {ref.name: world.engine.scheduler.cache.tier(ref) for ref in ADAPTERS}
    assert tiers["broken"] is Tier.COLD
