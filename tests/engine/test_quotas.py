"""What a tenant may hold of a tier: its own adapters make way first, and nobody is shut out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.quotas import Quotas
from engine.types import AdapterRef, FinishReason, Tenant
from tests.support.world import PAGE_BYTES, World, adapter, config


def world_of(pages: int = 30, host_blocks: int = 64) -> World:
    """Room for so many pages of adapters, which sequences don't need."""
    return World(
        config(num_pages=1 + 128 + pages, max_model_len=4 * 128, host_bytes=host_blocks * 4096)
    )


def use(world: World, tenant: Tenant, *refs: AdapterRef) -> None:
    for ref in refs:
        world.submit(f"{ref.name}-{len(world.answers)}", tenant=tenant, ref=ref, max_tokens=2)
        world.run()


def named(prefix: str, num: int, tenant: str, pages: int = 5) -> list[AdapterRef]:
    return [adapter(f"{prefix}{number}", pages, tenant) for number in range(num)]


def test_on_the_device_a_tenants_own_idle_adapters_make_way_for_its_next_one() -> None:
    world = world_of()
    bounded = Tenant("bounded", max_device_bytes=10 * PAGE_BYTES)
    others = named("o", 3, "free")
    use(world, Tenant("free"), *others)
    for ref in named("b", 6, "bounded"):
        use(world, bounded, ref)
        mine = [key for key in world.residency.device if key.startswith("bounded/")]
        assert ref.key in mine and len(mine) <= 2
    assert {ref.key for ref in others} <= set(world.residency.device), "nobody else's"


def test_in_host_memory_likewise() -> None:
    world = world_of(host_blocks=6)
    bounded = Tenant("bounded", max_host_bytes=2 * 5 * PAGE_BYTES)
    others = named("o", 1, "free")
    use(world, Tenant("free"), *others)
    for ref in named("b", 6, "bounded"):
        use(world, bounded, ref)
        assert len([key for key in world.residency.host if key.startswith("bounded/")]) <= 2
    assert others[0].key in world.residency.host


def test_one_adapter_larger_than_its_tenants_quota_is_served_alone() -> None:
    world = world_of()
    tiny = Tenant("tiny", max_device_bytes=1, max_host_bytes=1)
    use(world, Tenant("free"), *named("o", 6, "free"))
    use(world, tiny, *named("t", 4, "tiny"))
    assert all(answer.finish is FinishReason.LENGTH for answer in world.answers.values())
    assert len([key for key in world.residency.device if key.startswith("tiny/")]) == 1


def test_adapters_in_use_take_turns_within_the_quota_and_the_others_keep_their_places() -> None:
    world = world_of()
    bounded = Tenant("bounded", max_device_bytes=10 * PAGE_BYTES)
    free = named("o", 4, "free")
    for ref in free:
        world.submit(ref.name, tenant="free", ref=ref, max_tokens=40)
    world.run_until(lambda: len(world.residency.device) == 4)
    mine = named("b", 4, "bounded")
    for round_number in range(2):
        for ref in mine:
            world.submit(f"{ref.name}{round_number}", tenant=bounded, ref=ref, max_tokens=40)
    while any(answer.finish is None for answer in world.answers.values()):
        world.step()
        on_device = world.residency.device
        assert sum(key.startswith("bounded/") for key in on_device) <= 2
        assert {ref.key for ref in free} <= set(on_device)
        assert world.clock() < 30.0
    world.run()


def test_what_is_above_a_lowered_quota_goes_first() -> None:
    world = world_of()
    use(world, Tenant("t"), *named("t", 3, "t"))
    use(world, Tenant("u"), *named("u", 3, "u"))
    use(world, Tenant("u", max_device_bytes=5 * PAGE_BYTES), adapter("u0", 5, "u"))
    use(world, Tenant("t"), *named("v", 2, "t"))
    on_device = [key.partition("/")[0] for key in world.residency.device]
    assert sorted(on_device) == ["t"] * 5 + ["u"], "though those of t were used before"


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.none() | st.integers(0, 20)),
        max_size=20,
    )
)
def test_the_books_are_right(events: list[tuple[str, int, int | None]]) -> None:
    quotas, held = Quotas(), dict[str, int]()
    for tenant, num_bytes, limit in events:
        quotas.add(tenant, num_bytes)
        quotas.limit(tenant, limit)
        held[tenant] = held.get(tenant, 0) + num_bytes
        expected = 0 if limit is None else max(0, held[tenant] + 3 - limit)
        assert quotas.excess(tenant, 3) == expected
    quotas.check({tenant: num_bytes for tenant, num_bytes in held.items() if num_bytes})
