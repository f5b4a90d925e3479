"""What an operator keeps, warms and takes away: pins, ordered prefetches, retired versions."""

from __future__ import annotations

import pytest

from engine.adapters.cache import Tier
from engine.adapters.retired import MARK_S
from engine.config import AdapterConfig
from engine.errors import AdapterUnavailable
from engine.messages import Drop, Pin, Prefetch, Retry, SetPins
from engine.types import AdapterRef, FinishReason
from tests.support.world import World, adapter, config

GONE = AdapterUnavailable("The object can't be read.").info()


def tier(world: World, ref: AdapterRef) -> Tier:
    return world.engine.scheduler.cache.tier(ref)


def small(host_blocks: int = 64, pages: int = 15) -> World:
    """Room for `pages` pages of adapters beside one longest sequence."""
    return World(config(num_pages=1 + 16 + pages, host_bytes=host_blocks * 4096))


def settle(world: World, seconds: float = 0.5) -> None:
    until_s = world.clock() + seconds
    while world.clock() < until_s:
        world.step()


def use(world: World, *refs: AdapterRef) -> None:
    for ref in refs:
        world.submit(f"{ref.name}-{len(world.answers)}", ref=ref, max_tokens=2)
        world.run()


def test_what_is_pinned_on_the_device_stays_there_under_pressure() -> None:
    world = small()
    pinned = adapter("pinned", 5)
    world.engine.deliver(SetPins((Pin(pinned, on_device=True),)))
    world.run_until(lambda: world.residency.pinned == (pinned.key,))
    assert tier(world, pinned) is Tier.DEVICE
    for number in range(8):
        use(world, adapter(f"a{number}", 5))
        assert pinned.key in world.residency.device
    world.engine.deliver(SetPins(()))
    for number in range(8):
        use(world, adapter(f"b{number}", 5))
    assert pinned.key not in world.residency.device and not world.residency.pinned


def test_what_is_pinned_in_host_memory_stays_there_under_pressure() -> None:
    world = small(host_blocks=4)
    pinned = adapter("pinned", 5)
    world.engine.deliver(SetPins((Pin(pinned, on_device=False),)))
    world.run_until(lambda: world.residency.pinned == (pinned.key,))
    for number in range(8):
        use(world, adapter(f"a{number}", 5))
        assert pinned.key in world.residency.host
    assert [load.ref.name for load in world.loads].count("pinned") == 1


def test_a_pin_takes_the_place_of_what_is_idle() -> None:
    world = small()
    use(world, *(adapter(f"a{number}", 5) for number in range(3)))
    assert len(world.residency.device) == 3
    pinned = adapter("pinned", 5)
    world.engine.deliver(SetPins((Pin(pinned, on_device=True),)))
    world.run_until(lambda: world.residency.pinned == (pinned.key,))
    assert len(world.residency.device) == 3


def test_what_pins_leave_no_room_for_is_told_so_with_the_numbers() -> None:
    world = small()
    pinned, large = adapter("pinned", 6), adapter("large", 10)
    world.engine.deliver(SetPins((Pin(pinned, on_device=True),)))
    world.run_until(lambda: world.residency.pinned == (pinned.key,))
    use(world, large)
    error = world.answers["large-0"].error
    assert error is not None and (error.status, error.code) == (503, "no_room_beside_pins")
    assert str(10 * 1024) in error.message and str(9 * 1024) in error.message
    use(world, adapter("fits", 9))
    assert world.answers["fits-1"].finish is FinishReason.LENGTH


def test_a_pin_waits_for_a_request_that_it_would_shut_out() -> None:
    world = small()
    large, pinned = adapter("large", 12), adapter("pinned", 6)
    world.submit("r", ref=large, max_tokens=30)
    world.step()
    world.engine.deliver(SetPins((Pin(pinned, on_device=True),)))
    world.run()
    assert world.answers["r"].finish is FinishReason.LENGTH
    settle(world)
    assert world.residency.pinned == (pinned.key,)


def test_a_pin_whose_load_fails_is_tried_again() -> None:
    world = small()
    bad = adapter("bad", 2)
    world.fails = lambda ref: GONE
    world.engine.deliver(SetPins((Pin(bad, on_device=True),)))
    settle(world, 4.0)
    assert len(world.loads) == 1, "its failure is remembered"
    world.fails = lambda ref: None
    settle(world, 6.0)
    assert world.residency.pinned == (bad.key,)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_only_an_ordered_prefetch_takes_the_place_of_what_is_idle(is_ordered: bool) -> None:
    world = small()
    use(world, *(adapter(f"a{number}", 5) for number in range(3)))
    wanted = adapter("wanted", 5)
    world.engine.deliver(Prefetch(wanted, is_ordered=is_ordered))
    settle(world)
    assert tier(world, wanted) is (Tier.DEVICE if is_ordered else Tier.HOST)


def test_a_prefetch_to_the_host_goes_no_nearer_until_a_request_comes() -> None:
    world = small()
    wanted = adapter("wanted", 5)
    world.engine.deliver(Prefetch(wanted, to_device=False))
    settle(world)
    assert tier(world, wanted) is Tier.HOST
    use(world, wanted)
    assert tier(world, wanted) is Tier.DEVICE and len(world.loads) == 1


def test_an_ordered_prefetch_does_not_end_with_a_request_that_is_given_up() -> None:
    world = small()
    wanted = adapter("wanted", 5)
    world.submit("r", ref=wanted)
    world.engine.deliver(Prefetch(wanted, is_ordered=True))
    world.step()
    world.engine.abort("r")
    settle(world)
    assert tier(world, wanted) is Tier.DEVICE


# Retired versions ------------------------------------------------------------------------------


def test_a_retired_version_goes_when_its_last_request_has_ended() -> None:
    world = small()
    ref = adapter("a", 2)
    world.submit("r", ref=ref, max_tokens=30)
    world.run_until(lambda: len(world.answers["r"].tokens) > 3)
    world.engine.deliver(Drop(ref))
    world.submit("late", ref=ref, max_tokens=30)
    world.run()
    assert [world.answers[name].finish for name in ("r", "late")] == [FinishReason.LENGTH] * 2
    settle(world, 0.1)
    assert tier(world, ref) is Tier.COLD
    assert world.residency.lists() == {"loading": [], "host": [], "device": [], "pinned": []}
    assert [discard.ref for discard in world.discards] == [ref]


def test_what_is_published_again_after_it_was_retired_now_is_served_at_once() -> None:
    world = World(config())
    ref = adapter("a")
    use(world, ref)
    world.engine.deliver(Drop(ref, now=True))
    world.engine.deliver(Retry(ref))
    use(world, ref)
    assert {answer.finish for answer in world.answers.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize("turns", range(10))
def test_retired_now_its_requests_end_with_an_error_in_any_state(turns: int) -> None:
    """Waiting for a load, an upload, half read, decoding."""
    world = World(config(), load_s=0.002, upload_s=0.002)
    ref = adapter("a")
    world.submit("r", prompt=40, max_tokens=5, ref=ref)
    world.submit("base", prompt=40, max_tokens=5)
    for _ in range(turns):
        world.step()
    is_over = world.answers["r"].finish is not None
    world.engine.deliver(Drop(ref, now=True))
    world.submit("late", ref=ref)
    world.run()
    error = world.answers["late" if is_over else "r"].error
    assert error is not None and (error.status, error.code) == (404, "adapter_retired")
    assert "t/a" in error.message
    assert world.answers["late"].error == error
    assert len(world.answers["base"].tokens) == 5
    settle(world, 0.1)
    assert tier(world, ref) is Tier.COLD and world.discards
    world.clock.sleep(MARK_S)
    use(world, ref)
    assert world.answers["a-3"].finish is FinishReason.LENGTH, "published again"


def test_five_hundred_versions_of_one_name_leave_nothing_behind() -> None:
    """C-VERSION-LEAK: each is retired when the next one comes, under light traffic."""
    world = World(config(adapters=AdapterConfig(max_loads=2)), load_s=0.002)
    world.checks = False
    for number in range(500):
        use(world, adapter(f"v{number}"))
        if number:
            world.engine.deliver(Drop(adapter(f"v{number - 1}")))
    settle(world, MARK_S + 1.0)
    world.engine.scheduler.check()
    last = adapter("v499").key
    assert world.residency.lists() == {
        "loading": [],
        "host": [last],
        "device": [last],
        "pinned": [],
    }
    assert len(world.discards) == 499


def test_a_version_published_again_and_pinned_stays_once_the_mark_is_gone() -> None:
    world = small()
    ref = adapter("a", 2)
    pins = SetPins((Pin(ref, on_device=True),))
    world.engine.deliver(pins)
    world.run_until(lambda: world.residency.pinned == (ref.key,))
    world.engine.deliver(Drop(ref))
    settle(world, 0.2)
    assert tier(world, ref) is Tier.COLD
    world.engine.deliver(pins)
    settle(world, MARK_S + 1.0)
    num_loads = len(world.loads)
    settle(world, 5.0)
    assert world.residency.pinned == (ref.key,) and len(world.loads) == num_loads
